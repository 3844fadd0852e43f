// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

const modulePath = "github.com/gpuflight/gpuflight/"

// importRule is a rule of depguard in .golangci.yml.
type importRule struct {
	Mode  string   `yaml:"list-mode"`
	Files []string `yaml:"files"`
	Allow []string `yaml:"allow"`
	Deny  []struct {
		Package string `yaml:"pkg"`
	} `yaml:"deny"`
}

// importRules returns the rules of depguard by name.
func importRules(t *testing.T, root string) map[string]importRule {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, ".golangci.yml"))
	require.NoError(t, err)
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]importRule `yaml:"rules"`
				} `yaml:"depguard"`
			} `yaml:"settings"`
		} `yaml:"linters"`
	}
	require.NoError(t, yaml.Unmarshal(text, &config))
	rules := config.Linters.Settings.Depguard.Rules
	require.Greater(t, len(rules), 30)
	return rules
}

// importTable returns the rows of the import table in docs/internals/architecture.md that list
// packages: folder → names of permitted imports. Rows in prose describe the lax rules.
func importTable(t *testing.T, root string) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "internals", "architecture.md"))
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(page), "\n## Import rules\n")
	require.True(t, ok)
	text, _, _ = strings.Cut(text, "\n## ")
	table := map[string][]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*`) \\| (.*) \\|$").FindAllStringSubmatch(text, -1) {
		if strings.Contains(row[2], "this module") {
			continue // the SDK, described in prose
		}
		var names []string
		if row[2] != "–" {
			names = strings.Split(row[2], ", ")
		}
		for _, folder := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			assert.NotContains(t, table, folder[1], "two rows")
			table[folder[1]] = names
		}
	}
	require.Greater(t, len(table), 20)
	return table
}

// importNames maps import paths outside this module to their names in the table. Other paths are
// named after their last element.
var importNames = map[string]string{
	"golang.org/x/sys/unix":                     "x/sys/unix",
	"github.com/cilium/ebpf":                    "cilium/ebpf",
	"go.opentelemetry.io/otel/propagation":      "OpenTelemetry API",
	"go.opentelemetry.io/otel/trace":            "OpenTelemetry API",
	"google.golang.org/grpc":                    "gRPC",
	"google.golang.org/genproto/googleapis/rpc": "gRPC",
	"google.golang.org/protobuf/proto":          "protobuf",
}

func importName(path string) string {
	if name, ok := importNames[path]; ok {
		return name
	}
	if path == modulePath+"internal/recording/deep/engine" {
		return "deep/engine"
	}
	if path = regexp.MustCompile(`/v\d+$`).ReplaceAllString(path, ""); path != "" {
		return path[strings.LastIndex(path, "/")+1:]
	}
	return path
}

// ruleFolder returns the folder of a strict rule's files, such as "internal/glob".
func ruleFolder(rule importRule) string {
	return regexp.MustCompile(`/\*+\.go$`).ReplaceAllString(strings.TrimPrefix(rule.Files[0], "**/"), "")
}

// importDifferences compares the strict rules with the table and returns one line per difference.
func importDifferences(rules map[string]importRule, table map[string][]string) []string {
	var out []string
	rows := map[string]bool{}
	for name, rule := range rules {
		if rule.Mode != "strict" {
			continue
		}
		folder := ruleFolder(rule)
		row := ""
		for listed := range table {
			if rest, short := strings.CutPrefix(listed, "…/"); listed == folder || short && strings.HasSuffix("/"+folder, "/"+rest) {
				row = listed
			}
		}
		if row == "" {
			out = append(out, "rule "+name+": "+folder+" has no row")
			continue
		}
		rows[row] = true
		permitted := map[string]bool{}
		for _, path := range rule.Allow {
			if path == "$gostd" || path == "C" || path == modulePath+folder {
				continue
			}
			permitted[importName(path)] = true
		}
		listed := map[string]bool{}
		for _, imported := range table[row] {
			listed[imported] = true
		}
		for imported := range permitted {
			if !listed[imported] {
				out = append(out, row+": the table lacks "+imported)
			}
		}
		for imported := range listed {
			if !permitted[imported] {
				out = append(out, row+": the linter forbids "+imported)
			}
		}
	}
	for row := range table {
		if !rows[row] {
			out = append(out, row+" has no rule")
		}
	}
	slices.Sort(out)
	return out
}

// TestImports_Table compares the import table of docs/internals/architecture.md with the rules that
// the linter enforces.
func TestImports_Table(t *testing.T) {
	root := process.Root(t)
	rules, table := importRules(t, root), importTable(t, root)
	assert.Empty(t, importDifferences(rules, table))

	t.Run("extra import in a row", func(t *testing.T) {
		changed := maps.Clone(table)
		changed["internal/glob"] = append(slices.Clone(changed["internal/glob"]), "semconv")
		assert.Contains(t, importDifferences(rules, changed), "internal/glob: the linter forbids semconv")
	})
	t.Run("missing row", func(t *testing.T) {
		changed := maps.Clone(table)
		delete(changed, "internal/glob")
		assert.Contains(t, importDifferences(rules, changed), "rule glob: internal/glob has no row")
	})
	t.Run("missing rule", func(t *testing.T) {
		changed := maps.Clone(rules)
		delete(changed, "glob")
		assert.Contains(t, importDifferences(changed, table), "internal/glob has no rule")
	})
}

// TestImports_Paths checks that the rules name folders of this repository that exist. A rule for a
// moved folder would have no effect.
func TestImports_Paths(t *testing.T) {
	root := process.Root(t)
	var all []string
	folders(t, root, func(dir string) { all = append(all, dir) })
	for name, rule := range importRules(t, root) {
		for _, pattern := range rule.Files {
			folder, ok := strings.CutPrefix(strings.TrimPrefix(pattern, "!"), "**/")
			if !ok {
				continue
			}
			folder = regexp.MustCompile(`/\*+\.go$`).ReplaceAllString(folder, "")
			assert.True(t, slices.ContainsFunc(all, func(dir string) bool {
				return strings.HasSuffix("/"+dir, "/"+folder)
			}), "rule %s: no folder %s", name, folder)
		}
		paths := slices.Clone(rule.Allow)
		for _, deny := range rule.Deny {
			paths = append(paths, deny.Package)
		}
		for _, path := range paths {
			if folder, ok := strings.CutPrefix(path, modulePath); ok {
				assert.DirExists(t, filepath.Join(root, folder), "rule %s: %s", name, path)
			}
		}
	}
}

// TestDocs_FolderPurpose checks that the list of folders says something about each folder.
func TestDocs_FolderPurpose(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(process.Root(t), "docs", "internals", "architecture.md"))
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(page), "\n## Folders\n")
	require.True(t, ok)
	text, _, _ = strings.Cut(text, "\n## ")
	rows := regexp.MustCompile("(?m)^\\| (`.*`) \\|(.*)\\|$").FindAllStringSubmatch(text, -1)
	require.Greater(t, len(rows), 80)
	for _, row := range rows {
		assert.GreaterOrEqual(t, len(strings.Fields(row[2])), 2, "%s has no purpose", row[1])
	}
}
