// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A name of telemetry spelled here, and not taken from semconv, could differ from what every other
// component writes.
func TestNamesAreSpelledInSemconvOnly(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		checked++
		for _, at := range dottedLiterals(f) {
			t.Errorf("%s: a name of telemetry as a literal: take it from semconv", fset.Position(at))
		}
	}
	if checked < 5 {
		t.Errorf("looked at %d files only", checked)
	}
}

func TestDottedLiteralsAreFound(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", `package x
import "a.b/c"
var x, y, z = "cuda.stream.id", "memcpy HtoD", "gpu.xid"
`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(dottedLiterals(f)); got != 2 {
		t.Errorf("found %d, want 2", got)
	}
}

var dotted = regexp.MustCompile(`^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$`)

func dottedLiterals(f *ast.File) []token.Pos {
	var found []token.Pos
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if s, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && dotted.MatchString(s) {
				found = append(found, n.Pos())
			}
		}
		return true
	})
	return found
}
