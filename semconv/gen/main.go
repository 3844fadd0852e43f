// SPDX-License-Identifier: Apache-2.0

// Command gen writes the constants of package semconv and docs/telemetry.md from semconv's
// registry. It takes the repository's root as its only argument; the default is the current folder.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpuflight/gpuflight/semconv/internal/render"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	if err := write(root); err != nil {
		fmt.Fprintln(os.Stderr, "semconv/gen:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	files, err := render.Files()
	if err != nil {
		return err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(root, name), data, 0o644); err != nil { //nolint:gosec // These are source files, as readable as the others.
			return err
		}
	}
	return nil
}
