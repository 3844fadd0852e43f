// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// maxUserWords bounds the user documentation: all pages of docs, without docs/internals.
const maxUserWords = 27_200

var (
	codeBlock = regexp.MustCompile("(?s)```.*?```")
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	linkText  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	notAnchor = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// folders calls visit with each folder of the repository, relative to the root and with slashes. It
// skips hidden folders, build results, test data and packages of npm.
func folders(t *testing.T, root string, visit func(dir string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		name := d.Name()
		if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules" || path == filepath.Join(root, "bin")) {
			return filepath.SkipDir
		}
		dir, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		visit(filepath.ToSlash(dir))
		return nil
	}))
}

// anchors returns the anchors of a page's headings, as GitHub derives them.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		title := linkText.ReplaceAllString(m[1], "$1")
		title = notAnchor.ReplaceAllString(strings.ToLower(title), "")
		out[strings.ReplaceAll(strings.TrimSpace(title), " ", "-")] = true
	}
	return out
}

// TestDocs_Links checks that relative links of all Markdown files lead to an existing file and
// heading.
func TestDocs_Links(t *testing.T) {
	root := process.Root(t)
	found := 0
	folders(t, root, func(dir string) {
		pages, err := filepath.Glob(filepath.Join(root, dir, "*.md"))
		require.NoError(t, err)
		for _, page := range pages {
			text, err := os.ReadFile(page)
			require.NoError(t, err)
			for _, m := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(string(text), ""), -1) {
				if strings.Contains(m[1], "://") {
					continue
				}
				found++
				path, anchor, _ := strings.Cut(m[1], "#")
				target := page
				if path != "" {
					target = filepath.Join(filepath.Dir(page), path)
				}
				info, err := os.Stat(target)
				if !assert.NoError(t, err, "%s links to %s", page, m[1]) || anchor == "" || info.IsDir() {
					continue
				}
				to, err := os.ReadFile(target)
				require.NoError(t, err)
				assert.True(t, anchors(string(to))[anchor], "%s links to %s: no such heading", page, m[1])
			}
		}
	})
	assert.Greater(t, found, 100)
}

// TestDocs_Index checks that docs/README.md and docs/internals/README.md link to every page next to
// them.
func TestDocs_Index(t *testing.T) {
	root := process.Root(t)
	for _, dir := range []string{"docs", "docs/internals"} {
		index, err := os.ReadFile(filepath.Join(root, dir, "README.md"))
		require.NoError(t, err)
		pages, err := filepath.Glob(filepath.Join(root, dir, "*.md"))
		require.NoError(t, err)
		assert.Greater(t, len(pages), 3)
		for _, page := range pages {
			if name := filepath.Base(page); name != "README.md" {
				assert.Contains(t, string(index), "]("+name+")", "%s has no link to %s", dir, name)
			}
		}
	}
}

// TestDocs_Length bounds the user documentation.
func TestDocs_Length(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(process.Root(t), "docs", "*.md"))
	require.NoError(t, err)
	words := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for field := range strings.FieldsSeq(string(text)) {
			// Not the borders of tables and code fences.
			if strings.ContainsFunc(field, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
				words++
			}
		}
	}
	t.Logf("%d words", words)
	assert.Positive(t, words)
	assert.LessOrEqual(t, words, maxUserWords)
}

// TestDocs_Folders checks docs/internals/architecture.md against the tree. It must list every
// folder with Go or C files, and no folder that does not exist.
func TestDocs_Folders(t *testing.T) {
	root := process.Root(t)
	page, err := os.ReadFile(filepath.Join(root, "docs", "internals", "architecture.md"))
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(page), "\n## Folders\n")
	require.True(t, ok)
	text, _, ok = strings.Cut(text, "\n## ")
	require.True(t, ok)
	listed := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|").FindAllStringSubmatch(text, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			listed[name[1]] = true
			_, err := os.Stat(filepath.Join(root, name[1]))
			assert.NoError(t, err, "the page lists %s", name[1])
		}
	}
	require.NotEmpty(t, listed)
	folders(t, root, func(dir string) {
		// mdatagen writes these for each component; the page has one sentence for all.
		if base := filepath.Base(dir); base == "metadata" || base == "metadatatest" {
			return
		}
		// Pinned tools, and the parts of an example or of test/gpu, belong to the folder above.
		for _, above := range []string{"internal/tools/", "examples/", "test/gpu/", "cupti/inject/loader/"} {
			if strings.HasPrefix(dir, above) && dir != "examples/internal/cuda" {
				return
			}
		}
		for _, pattern := range []string{"*.go", "*.c"} {
			if files, _ := filepath.Glob(filepath.Join(root, dir, pattern)); len(files) > 0 {
				assert.True(t, listed[dir], "%s is not in docs/internals/architecture.md", dir)
				return
			}
		}
	})
}

// TestDocs_Names checks that the variables, flags and metrics in documents exist. They must be in
// code, configurations or scripts, or in the lists generated from semconv and metadata.yaml.
// CHANGELOG.md and the list of renames also have former names.
func TestDocs_Names(t *testing.T) {
	root := process.Root(t)
	var known strings.Builder
	var pages []string
	folders(t, root, func(dir string) {
		files, err := os.ReadDir(filepath.Join(root, dir))
		require.NoError(t, err)
		for _, f := range files {
			path := filepath.Join(root, dir, f.Name())
			switch filepath.Ext(f.Name()) {
			case ".md":
				if f.Name() != "documentation.md" && f.Name() != "telemetry.md" {
					pages = append(pages, path)
					continue
				}
			case ".go", ".c", ".h", ".yaml", ".yml", ".py", ".sh":
			default:
				if f.Name() != "Makefile" && dir != "scripts" {
					continue
				}
			}
			if !f.Type().IsRegular() {
				continue
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			known.Write(text)
			known.WriteByte('\n')
		}
	})
	code := known.String()
	names := []*regexp.Regexp{
		regexp.MustCompile(`\b(GPUFL(?:IGHT)?_[A-Z][A-Z_]*[A-Z])\b`),
		regexp.MustCompile("`((?:gpu\\.cuda|gpuflight|hw|cuda|process\\.gpu)\\.[a-z_.]+[a-z])`"),
		regexp.MustCompile("`((?:receiver|connector|processor|extension)_[a-z_]+[a-z])"),
		regexp.MustCompile("`(--[a-z][a-z-]+[a-z])"),
	}
	// A flag of GPU Flight's own agent.
	others := map[string]bool{"--upload-mode": true}
	found := 0
	for _, page := range pages {
		if base := filepath.Base(page); base == "CHANGELOG.md" || base == "renames.md" {
			continue
		}
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, pattern := range names {
			for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
				found++
				if !others[m[1]] && !strings.Contains(code, strings.TrimPrefix(m[1], "--")) {
					t.Errorf("%s names %s, which does not exist", page, m[1])
				}
			}
		}
	}
	assert.Greater(t, found, 300)
}
