// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/ortlib"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/server"
)

func (a *app) build() *cobra.Command {
	provider := ""
	cmd := &cobra.Command{
		Use: "build [FOLDER]", Short: "Check a model and its gpux.yml, and optimise the model for this machine",
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			folder := "."
			if len(args) == 1 {
				folder = args[0]
			}
			c, err := config.Read(folder)
			if err != nil {
				return err
			}
			dir := filepath.Join(c.Dir, artifacts)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			optimized := filepath.Join(dir, "optimized.onnx")
			m, err := a.load(c, provider, engine.Options{Optimized: optimized})
			if err != nil {
				return err
			}
			if err := m.Close(); err != nil {
				return err
			}
			info, err := describe(c, m.Info)
			if err != nil {
				return err
			}
			for name, value := range map[string]any{"model_info.json": info, "provider_info.json": m.Selection} {
				if err := writeJSON(filepath.Join(dir, name), value); err != nil {
					return err
				}
			}
			a.table(info)
			a.selected(m.Selection)
			a.printf("\nThe model works. %s has its description, and the model as ONNX Runtime optimised it.\n", dir)
			return nil
		},
	}
	cmd.Flags().StringVarP(&provider, "provider", "p", "", "use this provider only")
	return cmd
}

func describe(c *config.Config, m *onnx.Model) (server.Info, error) {
	file, err := os.Stat(c.ModelPath())
	if err != nil {
		return server.Info{}, err
	}
	return server.Describe(c, m, c.ModelPath(), file.Size()), nil
}

func writeJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

func (a *app) inspect() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "inspect [MODEL]", Short: "Describe a model, an .onnx file, or without an argument this machine",
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.inspectMachine(asJSON)
			}
			var info server.Info
			if strings.HasSuffix(args[0], ".onnx") {
				m, err := onnx.ReadFile(args[0])
				if err != nil {
					return err
				}
				file, err := os.Stat(args[0])
				if err != nil {
					return err
				}
				info = server.Describe(nil, m, args[0], file.Size())
			} else {
				c, err := find(args[0])
				if err != nil {
					return err
				}
				m, err := onnx.ReadFile(c.ModelPath())
				if err != nil {
					return err
				}
				if err := c.Agree(m); err != nil {
					return err
				}
				if info, err = describe(c, m); err != nil {
					return err
				}
			}
			if asJSON {
				return a.json(info)
			}
			a.table(info)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) json(value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err == nil {
		a.printf("%s\n", text)
	}
	return err
}

// table prints a model.
func (a *app) table(i server.Info) {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	row := func(key string, value any) { _, _ = fmt.Fprintf(w, "%s\t%v\n", key, value) }
	row("Model", strings.TrimSpace(i.Name+" "+i.Version))
	if i.Description != "" {
		row("Description", i.Description)
	}
	row("File", fmt.Sprintf("%s, %.2f MB", i.Path, float64(i.SizeBytes)/1e6))
	row("Producer", i.Producer)
	row("Opsets", pairs(i.Opsets))
	row("Operators", pairs(i.Operators))
	if len(i.Accepts) > 0 {
		row("Accepts", strings.Join(i.Accepts, ", ")+", tensors")
	}
	_ = w.Flush() // see printf
	for _, list := range []struct {
		title string
		ports []server.Port
	}{{"Inputs", i.Inputs}, {"Outputs", i.Outputs}} {
		a.printf("\n%s\n", list.title)
		for _, p := range list.ports {
			_, _ = fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", p.Name, p.Type, strings.ReplaceAll(fmt.Sprint(p.Shape), " ", " × "), p.Description)
		}
		_ = w.Flush()
	}
}

func pairs[V any](m map[string]V) string {
	var list []string
	for k, v := range m {
		list = append(list, fmt.Sprintf("%s %v", k, v))
	}
	sort.Strings(list)
	return strings.Join(list, ", ")
}

// selected prints the provider and why others were not used.
func (a *app) selected(s engine.Selection) {
	a.printf("\nProvider  %s (%s), ONNX Runtime %s\n", s.Provider.Name, s.Provider.Description, engine.Version())
	for _, r := range s.Rejected {
		a.printf("  not %s: %s\n", r.Provider, r.Reason)
	}
}

func (a *app) inspectMachine(asJSON bool) error {
	found, err := a.open()
	if err != nil {
		return err
	}
	working, rejected := engine.Probe()
	if asJSON {
		return a.json(map[string]any{"library": found, "onnxruntime": engine.Version(), "available_providers": working, "rejected_providers": rejected})
	}
	a.printf("ONNX Runtime %s  %s (%s)\n\nProviders that work, the preferred one first\n", engine.Version(), found.Path, found.Source)
	for _, p := range working {
		note := ""
		if !p.Tested {
			note = "  (gpux was not tested with it)"
		}
		a.printf("  %-9s %s%s\n", p.Name, p.Description, note)
	}
	a.printf("\nProviders that do not work here\n")
	for _, r := range rejected {
		a.printf("  %-9s %s\n", r.Provider, r.Reason)
	}
	return nil
}

func (a *app) runtime() *cobra.Command {
	cmd := &cobra.Command{Use: "runtime", Short: "Install or list the library of ONNX Runtime"}
	gpu, from := false, ""
	install := &cobra.Command{
		Use: "install", Short: "Install ONNX Runtime " + ortlib.Version + " from PyPI, with python3 -m pip", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := ortlib.Install(cmd.Context(), gpu, from, a.err)
			if err != nil {
				return err
			}
			a.printf("%s\n", path)
			return nil
		},
	}
	install.Flags().BoolVar(&gpu, "gpu", false, "install the library that supports CUDA (220 MB); it needs CUDA 13 and cuDNN 9")
	install.Flags().StringVar(&from, "from", "", "take this wheel instead of downloading it")
	list := &cobra.Command{
		Use: "list", Short: "List the libraries that are found, the one in use first", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if _, err := ortlib.Find(a.library); err != nil {
				return err
			}
			for _, f := range ortlib.Installed() {
				a.printf("%s  %s\n", f.Path, f.Source)
			}
			return nil
		},
	}
	cmd.AddCommand(install, list)
	return cmd
}
