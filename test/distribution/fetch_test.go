// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// tagOnly lists the images that are named by tag and not by digest. The reason is the same for all:
// no registry was reachable to find the digest. Dockerfile and examples/compose/README.md say how
// to pin them.
var tagOnly = []string{
	"golang:1.26.8-bookworm",
	"busybox:1.37.0-musl",
	"gcr.io/distroless/cc-debian12:nonroot",
	"apache/kafka:4.1.0",
	"versity/versitygw:v1.8.0",
	"clickhouse/clickhouse-server:26.9",
	"prom/prometheus:v3.5.0",
	"grafana/grafana:12.1.0",
}

// ownImages are built from this repository, or are the place of an image of the user.
var ownImages = []string{"ghcr.io/gpuflight/otelcol-gpuflight:0.2.0", "otelcol-gpuflight:local", "registry.example/inference:1"}

var (
	server = regexp.MustCompile(`\b(?:https?|ftp|git|ssh)://([^/\s"'$:]+)`)
	// A name without a dot is not on the internet.
	loopback = regexp.MustCompile(`^(?:127\.0\.0\.1|[a-z]+)$`)
	// continued is the end of a line that goes on in the next.
	continued = regexp.MustCompile(`\s*\\\n\s*`)
	// In Go and Python, the words of a command are quoted and separated by commas.
	pip = regexp.MustCompile(`\bpip3?["',\s]+(?:install|download|wheel)\b`)
	// forbidden commands have no hash to check, or switch a check off.
	forbidden = regexp.MustCompile(`\b(?:curl|wget)\s+[-"'$h]|\bgit\s+(?:clone|fetch|pull)\b|\b(?:npx|yarn|gem|cargo)\s+\w|` +
		// npm ci installs what package-lock.json lists and checks the hashes.
		`\bnpm\s+(?:i|install|add|update|exec|x)\b|` +
		`\bgo\s+(?:get|install|run)\s+(?:-\S+\s+)*[\w./-]+@|GONOSUM|GOINSECURE|GOSUMDB=off|GOFLAGS=\S*-insecure|` +
		`allow-unauthenticated|AllowUnauthenticated|AllowInsecure|trusted=yes|force-yes|trusted-host|index-url|` +
		`\bGOPROXY=|PIP_INDEX|--registry\b`)
	plugin = regexp.MustCompile(`\bmvn\s+-[^\n]*\s-C\s[^\n]*\borg\.apache\.maven\.plugins:[a-z-]+:\d[\w.]*:[a-z-]+`)
	mvn    = regexp.MustCompile(`(?m)^\s*mvn\s`)
	// An image in a Dockerfile or a manifest.
	image  = regexp.MustCompile(`(?m)^\s*(?:FROM\s+(\S+)|ARG\s+[A-Z]+=(\S*[:/]\S*)|(?:- )?image:[ \t]+(\S+))`)
	digest = regexp.MustCompile(`@sha256:[0-9a-f]{64}$`)
	pinned = regexp.MustCompile(`^(?:[\d.]+ )?[a-z][\w.-]*==[\w.]+(?: --hash=sha256:[0-9a-f]{64})+$`)
	summed = regexp.MustCompile(`^[0-9a-f]{64}  \S+$`)
)

// commands is a file without comments and with one command a line.
func commands(text string) string {
	text = regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(text, "")
	return regexp.MustCompile(`\\\n\s*`).ReplaceAllString(text, " ")
}

// fetches returns what a script, a Makefile or a Dockerfile fetches without a hash, and the servers
// that it names.
func fetches(text string) (out []string) {
	text = commands(text)
	for _, m := range server.FindAllStringSubmatch(text, -1) {
		if !loopback.MatchString(m[1]) {
			out = append(out, "server "+m[1])
		}
	}
	for line := range strings.Lines(text) {
		if m := forbidden.FindString(line); m != "" {
			out = append(out, "command "+m)
		}
		if pip.MatchString(line) && !strings.Contains(line, "--require-hashes") && !strings.Contains(line, "--no-index") {
			out = append(out, "pip without hashes")
		}
		if mvn.MatchString(line) && !plugin.MatchString(line) {
			out = append(out, "mvn without a pinned plugin and -C")
		}
	}
	if mvn.MatchString(text) && !strings.Contains(text, "sha256sum --check --strict") {
		out = append(out, "mvn without sha256sum")
	}
	return out
}

// images returns the images of a Dockerfile or a manifest.
func images(text string) (out []string) {
	for _, m := range image.FindAllStringSubmatch(commands(text), -1) {
		name := strings.Trim(m[1]+m[2]+m[3], `"'`)
		if !strings.HasPrefix(name, "$") && name != "{{" && !strings.HasPrefix(name, "variables.") { // a variable, also of the chart and of a policy
			out = append(out, name)
		}
	}
	return out
}

// sources calls visit for each file of the repository that is not built or fetched.
func sources(t *testing.T, visit func(name, text string)) {
	t.Helper()
	root := process.Root(t)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (name == ".git" || name == "bin" || name == ".tools" || d.Name() == "testdata" || d.Name() == "node_modules" || name == "examples/recordings"):
			return filepath.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		visit(filepath.ToSlash(name), string(text))
		return nil
	}))
}

// TestFetches_HashesAndNoServer walks everything that fetches something which is then executed.
func TestFetches_HashesAndNoServer(t *testing.T) {
	scripts, lists := 0, 0
	sources(t, func(name, text string) {
		inScripts := strings.HasPrefix(name, "scripts/")
		switch {
		case inScripts && (strings.HasSuffix(name, ".txt") || strings.HasSuffix(name, ".sha256")):
			lists++
			want := pinned
			if strings.HasSuffix(name, ".sha256") {
				want = summed
			}
			entries := 0
			for line := range strings.Lines(continued.ReplaceAllString(text, " ")) {
				if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
					entries++
					assert.Regexp(t, want, line, name)
				}
			}
			assert.Positive(t, entries, name)
		case inScripts, name == "Makefile", strings.HasPrefix(name, ".ci/"), strings.HasSuffix(name, "Dockerfile"):
			scripts++
			assert.Empty(t, fetches(text), name)
		case strings.HasSuffix(name, ".go"), strings.HasSuffix(name, ".py"), strings.HasSuffix(name, ".sh"):
			if name != "test/distribution/fetch_test.go" && !strings.Contains(text, `"--require-hashes"`) {
				// Messages name the command that installs our own package.
				assert.NotRegexp(t, pip, strings.ReplaceAll(text, "pip install gpuflight", ""), "%s: use scripts/wheels, which checks hashes", name)
			}
		}
	})
	assert.Greater(t, scripts, 10)
	assert.Equal(t, 10, lists)
}

// TestImages_DigestOrListed refuses an image by tag that is not in tagOnly, and an entry there that
// no file uses.
func TestImages_DigestOrListed(t *testing.T) {
	used := map[string]bool{}
	sources(t, func(name, text string) {
		if !strings.HasSuffix(name, "Dockerfile") && !strings.HasSuffix(name, ".yaml") && !strings.HasSuffix(name, ".yml") {
			return
		}
		for _, one := range images(text) {
			if digest.MatchString(one) || slices.Contains(ownImages, one) || strings.HasSuffix(name, "Dockerfile") && !strings.ContainsAny(one, ":/") {
				continue
			}
			used[one] = true
			assert.Contains(t, tagOnly, one, "%s: name the image by digest", name)
		}
	})
	for _, one := range tagOnly {
		assert.True(t, used[one], "no file names %s: remove it from tagOnly", one)
	}
}

// TestFetches_Mutations shows that the checks above find each kind of mistake.
func TestFetches_Mutations(t *testing.T) {
	for text, want := range map[string]string{
		"python3 -m pip install chdb\n":                                    "pip without hashes",
		"\"$python\" -m pip download --quiet \\\n\t--dest x chdb==1\n":     "pip without hashes",
		"exec.Command(python, \"-m\", \"pip\", \"download\", \"gpufl\")\n": "pip without hashes",
		"curl -fsSL -o x \"$central/x\"\n":                                 "command curl -",
		"wget http://127.0.0.1/x\n":                                        "command wget h",
		"central=https://repo1.maven.org/maven2\n":                         "server repo1.maven.org",
		"git clone x\n":                                                     "command git clone",
		"go install example.com/tool@v1.2.3\n":                              "command go install example.com/tool@",
		"go run example.com/tool@latest\n":                                  "command go run example.com/tool@",
		"GOSUMDB=off go build ./...\n":                                      "command GOSUMDB=off",
		"pip download --require-hashes --index-url x -r y\n":                "command index-url",
		"apt-get install --allow-unauthenticated x\n":                       "command allow-unauthenticated",
		"npm install\n":                                                     "command npm install",
		"mvn -B dependency:copy-dependencies\nsha256sum --check --strict\n": "mvn without a pinned plugin and -C",
		"mvn -B -C org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies\n": "mvn without sha256sum",
	} {
		assert.Equal(t, []string{want}, fetches(text), text)
	}
	for _, text := range []string{
		"pip download --require-hashes -r x\n", "pip install --no-index x.whl\n", "# see https://example.com\n", "apt-get download prometheus\n",
		"wait http://127.0.0.1:13133/\n", "mvn -B -C org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies\nsha256sum --check --strict x\n",
	} {
		assert.Empty(t, fetches(text), text)
	}
	assert.Equal(t, []string{"a:1", "r.example/b:2", "c:3", "d"},
		images("FROM a:1 AS build\nARG BASE=r.example/b:2\nFROM ${BASE}\n  image: c:3\n  - image: d\n# image: e\n"))
	assert.NotRegexp(t, pinned, "chdb-core==26.9.0")
	assert.NotRegexp(t, pinned, "chdb-core --hash=sha256:"+strings.Repeat("0", 64))
	assert.NotRegexp(t, digest, "a@sha256:12")
}

// TestFetches_NodePackages checks that npm has a hash for each package.
func TestFetches_NodePackages(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(process.Root(t), "web", "package-lock.json"))
	require.NoError(t, err)
	var lock struct {
		Packages map[string]struct{ Version, Integrity string }
	}
	require.NoError(t, json.Unmarshal(text, &lock))
	require.Greater(t, len(lock.Packages), 20)
	for name, p := range lock.Packages {
		if name != "" { // the UI itself
			assert.Regexp(t, `^sha512-[A-Za-z0-9+/]{86}==$`, p.Integrity, name)
		}
	}
}
