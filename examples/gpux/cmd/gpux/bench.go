// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
)

func (a *app) bench() *cobra.Command {
	var input, provider string
	var runs, warmup, rows int
	asJSON := false
	cmd := &cobra.Command{
		Use: "bench MODEL", Short: "Measure a model",
		Long: `Measure runs of a model, one after another. Without --input, the inputs are
zeros: a dimension without a size has 1 element, and the first one --rows.`,
		Args: one("model"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if runs < 1 || warmup < 0 || rows < 1 {
				return usageError{errors.New("--runs and --rows must be at least 1, and --warmup at least 0")}
			}
			if input != "" && cmd.Flags().Changed("rows") {
				return usageError{errors.New("--rows is for runs without --input")}
			}
			c, err := find(args[0])
			if err != nil {
				return err
			}
			var text []byte
			if input != "" {
				if text, err = a.input(input); err != nil {
					return err
				}
			}
			shutdown, err := record(cmd.Context(), c.Name, c.Version)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, shutdown(context.WithoutCancel(cmd.Context()))) }()
			m, err := a.load(c, provider, engine.Options{})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, m.Close()) }()
			var values engine.Tensors
			if text != nil {
				values, err = m.inputs(cmd.Context(), text)
			} else {
				values, err = engine.Zeros(m.Info.Inputs, int64(rows))
			}
			if err != nil {
				return err
			}
			f, err := measure(cmd.Context(), m.Model, values, warmup, runs, time.Duration(c.Runtime.Timeout))
			if err != nil {
				return err
			}
			if asJSON {
				return a.json(f)
			}
			a.printf("%d runs on %s, ONNX Runtime %s\n\n", runs, f.Provider, f.Runtime)
			a.printf("  mean    %.4g ms, standard deviation %.4g ms\n  median  %.4g ms\n  95 %%    %.4g ms\n  99 %%    %.4g ms\n  range   %.4g to %.4g ms\n  rate    %.4g runs/s\n",
				f.Mean, f.Std, f.Median, f.P95, f.P99, f.Min, f.Max, f.Throughput)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&input, "input", "i", "", "inputs as a JSON object, @FILE, or - for the standard input")
	f.StringVarP(&provider, "provider", "p", "", "use this provider only")
	f.IntVar(&rows, "rows", 1, "size of the first dimension of inputs, where the model leaves it open")
	f.IntVar(&runs, "runs", 100, "measured runs")
	f.IntVar(&warmup, "warmup", 10, "runs before those")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
