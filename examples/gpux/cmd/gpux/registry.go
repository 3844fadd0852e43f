// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/registry"
)

func (a *app) pull() *cobra.Command {
	o := registry.Options{Log: func(format string, args ...any) { _, _ = fmt.Fprintf(a.err, "  "+format+"\n", args...) }} // see warn
	cmd := &cobra.Command{
		Use: "pull MODEL", Short: "Get a model from Hugging Face, an address or a folder",
		Long: `Get a model, so that the other commands find it by its name. MODEL is an ID of
Hugging Face, the address of an .onnx file, or a folder here or at an address. A
folder at an address needs a SHA256SUMS, as sha256sum writes it. A model without
a gpux.yml gets one. Its digests are checked. A pull that was interrupted goes on
where it ended.

HF_TOKEN gives access to private models, HF_ENDPOINT names a mirror. Models are
in the folder models of GPUX_HOME, which is ~/.gpux by default.`,
		Example: `  gpux pull onnx-community/distilbert-base-uncased-finetuned-sst-2-english-ONNX
  gpux pull https://models.example.com/digits/digits.onnx --sha256 c0ff…
  gpux pull ./digits`,
		Args: one("model"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := models()
			if err != nil {
				return err
			}
			e, changed, err := r.Pull(cmd.Context(), args[0], o)
			if cmd.Context().Err() != nil {
				return errors.New("the pull was interrupted; pull again to go on")
			}
			if err != nil {
				return err
			}
			if !changed {
				a.printf("%s is up to date.\n", e.Reference())
				return nil
			}
			a.printf("Pulled %s, %s.\nTry `gpux inspect %s` and `gpux serve %s`.\n", e.Reference(), registry.Bytes(e.Size()), e.Name, e.Name)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Revision, "revision", "", "branch, tag or commit of Hugging Face (default: main)")
	f.StringVar(&o.File, "file", "", "the .onnx file to take, where there are several")
	f.StringVar(&o.SHA256, "sha256", "", "digest of the file at an address, or of the SHA256SUMS of a folder there")
	return cmd
}

func (a *app) list() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "list", Short: "List the models that were pulled", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			r, err := models()
			if err != nil {
				return err
			}
			list, err := r.List()
			if err != nil {
				a.warn("the registry has folders that are no models: %v", err)
			}
			if asJSON {
				if list == nil {
					list = []registry.Entry{}
				}
				return a.json(list)
			}
			if len(list) == 0 {
				a.printf("No models. `gpux pull` gets one.\n")
				return nil
			}
			w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintf(w, "NAME\tREVISION\tSIZE\tPULLED\tSOURCE\n") // see printf
			for _, e := range list {
				pulled, source := e.Pulled.Local().Format(time.DateTime), e.Source
				if e.Incomplete {
					pulled, source = "incomplete", "pull again to go on, or rm"
				} else if e.Commit != "" {
					source += " at " + e.Commit[:min(len(e.Commit), 12)]
				}
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", e.Name, e.Revision, registry.Bytes(e.Size()), pulled, source)
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) remove() *cobra.Command {
	return &cobra.Command{
		Use: "rm MODEL...", Short: "Remove models that were pulled",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("name a model; `gpux list` shows them")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := models()
			if err != nil {
				return err
			}
			for _, name := range args {
				e, err := r.Remove(cmd.Context(), name)
				if err != nil {
					return err
				}
				a.printf("Removed %s, %s.\n", e.Reference(), registry.Bytes(e.Size()))
			}
			return nil
		},
	}
}
