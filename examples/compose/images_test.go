// SPDX-License-Identifier: Apache-2.0

//go:build linux

package compose_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var root = filepath.Join("..", "..")

func text(t *testing.T, elements ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elements...))
	require.NoError(t, err)
	return string(b)
}

// found returns the only group of the pattern's first match.
func found(t *testing.T, pattern, in string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(in)
	require.NotNil(t, m, pattern)
	return m[1]
}

// TestVersionsAreThoseThatAreTested: an image that other tests run something else than is of no use.
func TestVersionsAreThoseThatAreTested(t *testing.T) {
	c := compose(t).Services
	tag := func(name, image string) string {
		got, version, ok := strings.Cut(c[name].Image, ":")
		require.True(t, ok, name)
		assert.Equal(t, image, got)
		return version
	}
	assert.Equal(t, found(t, `<artifactId>kafka_2\.13</artifactId><version>([\d.]+)</version>`, text(t, root, "scripts", "kafka")),
		tag("kafka", "apache/kafka"))
	assert.Equal(t, found(t, `github.com/versity/versitygw (v[\d.]+)\s`, text(t, root, "internal", "tools", "versitygw", "go.mod")),
		tag("s3", "versity/versitygw"))
	assert.Equal(t, found(t, `engine (\d+\.\d+)`, strings.ReplaceAll(text(t, root, "docs", "deploying.md"), "\n", " ")),
		tag("clickhouse", "clickhouse/clickhouse-server"))
}

func TestImagesArePinned(t *testing.T) {
	version := regexp.MustCompile(`^[a-z0-9./-]+:v?\d+\.\d+(\.\d+)?$`)
	for name, s := range compose(t).Services {
		if s.Build != nil {
			assert.Equal(t, "otelcol-gpuflight:local", s.Image, name)
			assert.FileExists(t, filepath.Join(s.Build.Context, s.Build.Dockerfile))
			continue
		}
		assert.Regexp(t, version, s.Image, name)
	}
}

// instructions are those of the Dockerfile, each in one line.
func instructions(t *testing.T) (out []string) {
	t.Helper()
	for line := range strings.Lines(strings.ReplaceAll(text(t, root, "Dockerfile"), "\\\n", " ")) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			out = append(out, strings.Join(strings.Fields(line), " "))
		}
	}
	return out
}

// last is the arguments of the last instruction of this name, which is the one that counts.
func last(t *testing.T, name string) string {
	t.Helper()
	for _, line := range slices.Backward(instructions(t)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return rest
		}
	}
	require.Fail(t, "no such instruction in the Dockerfile", name)
	return ""
}

func TestTheDockerfile(t *testing.T) {
	var bases []string
	arguments := map[string]string{}
	for _, line := range instructions(t) {
		if rest, ok := strings.CutPrefix(line, "ARG "); ok && len(bases) == 0 {
			name, value, _ := strings.Cut(rest, "=")
			arguments[name] = value
		}
		if rest, ok := strings.CutPrefix(line, "FROM "); ok {
			fields := strings.Fields(rest)
			if strings.HasPrefix(fields[0], "--platform=") {
				fields = fields[1:]
			}
			bases = append(bases, os.Expand(fields[0], func(name string) string { return arguments[name] }))
		}
	}
	require.Len(t, bases, 5)
	assert.Regexp(t, `^golang:\d+\.\d+\.\d+-bookworm$`, bases[0])
	assert.Equal(t, "build", bases[2])
	assert.Regexp(t, `^busybox:\d+\.\d+\.\d+-musl$`, bases[3])
	assert.Equal(t, bases[3], bases[1])
	// Distroless has no tags of versions; Debian 12 is bookworm.
	assert.Equal(t, "gcr.io/distroless/cc-debian12:nonroot", bases[4]) // cc has libstdc++, which DuckDB needs

	// The compiler is not older than go.mod asks for, and of the same series.
	wanted := strings.Split(found(t, `(?m)^go (\d+\.\d+\.\d+)$`, text(t, root, "go.mod")), ".")
	used := strings.Split(found(t, `^golang:([\d.]+)-`, bases[0]), ".")
	assert.Equal(t, wanted[:2], used[:2])
	least, err := strconv.Atoi(wanted[2])
	require.NoError(t, err)
	patch, err := strconv.Atoi(used[2])
	require.NoError(t, err)
	assert.GreaterOrEqual(t, patch, least)

	// Neither root nor a name, which Kubernetes could not distinguish from root.
	user := last(t, "USER")
	assert.Regexp(t, `^[1-9]\d*:[1-9]\d*$`, user)
	config := text(t, root, "config", "agent.yaml")
	state := found(t, `GPUFLIGHT_STATE:-([^}]+)\}`, config)
	assert.Contains(t, instructions(t), "COPY --from=programs --chown="+user+" /out/state "+state)

	// There is no shell, so all are lists.
	for _, name := range []string{"ENTRYPOINT", "CMD"} {
		var list []string
		require.NoError(t, json.Unmarshal([]byte(last(t, name)), &list), name)
	}
	check := last(t, "HEALTHCHECK")
	_, request, ok := strings.Cut(check, " CMD ")
	require.True(t, ok, check)
	var list []string
	require.NoError(t, json.Unmarshal([]byte(request), &list))
	assert.Equal(t, "http://"+found(t, `GPUFLIGHT_HEALTH:-([^}]+)\}`, config)+"/", list[len(list)-1])
	assert.Contains(t, instructions(t), "COPY --from=busybox /bin/busybox "+list[0])

	var command []string
	require.NoError(t, json.Unmarshal([]byte(last(t, "CMD")), &command))
	require.Equal(t, "--config", command[0])
	folder, file := path.Split(command[1])
	assert.Contains(t, instructions(t), "COPY config "+strings.TrimSuffix(folder, "/"))
	assert.FileExists(t, filepath.Join(root, "config", file))

	// The flags of the Makefile, so that the image has what the tests test.
	dockerfile, makefile := text(t, root, "Dockerfile"), text(t, root, "Makefile")
	assert.Equal(t, 3, strings.Count(dockerfile, found(t, `(?m)^FLAGS\s*:= (.*)\$\(LDFLAGS\)"$`, makefile)+`$flags"`))
	assert.Contains(t, dockerfile, `flags="`+found(t, `(?m)^LDFLAGS\s*:= (.*?) \$\(if`, makefile)+" -X ")
}

// TestTheBuildSeesAllThatItNeeds: .dockerignore lets nothing through that it does not name.
func TestTheBuildSeesAllThatItNeeds(t *testing.T) {
	var admitted []string
	for line := range strings.Lines(text(t, root, ".dockerignore")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "!"); ok {
			admitted = append(admitted, name)
			_, err := os.Stat(filepath.Join(root, name))
			require.NoError(t, err)
		}
	}
	for _, name := range []string{"go.mod", "go.sum", "config"} {
		assert.Contains(t, admitted, name)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-deps",
		"-f", "{{with .Module}}{{if .Main}}{{$.ImportPath}}{{end}}{{end}}", "./cmd/otelcol-gpuflight", "./cmd/gpuflight", "./cupti/inject")
	list.Dir = process.Root(t)
	out, err := list.Output()
	require.NoError(t, err)
	packages := strings.Fields(string(out))
	assert.Greater(t, len(packages), 10)
	for _, name := range packages {
		inside, ok := strings.CutPrefix(name, "github.com/gpuflight/gpuflight/")
		require.True(t, ok, name)
		first, _, _ := strings.Cut(inside, "/")
		assert.Contains(t, admitted, first, name)
	}
}
