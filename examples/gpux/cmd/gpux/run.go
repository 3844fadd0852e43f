// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
)

func (a *app) run() *cobra.Command {
	var input, output, provider string
	var benchmark bool
	var runs, warmup int
	cmd := &cobra.Command{
		Use: "run MODEL", Short: "Run a model once, or measure it",
		Example: `  gpux run digits -i '{"image": [[…]]}'
  gpux run digits -i @request.json
  gpux run digits -i @three.png
  gpux run languages -i '{"text": "Where is the kernel?"}'
  gpux run digits -i - < requests.json     # a list of objects gives a list of answers
  gpux run digits -i @request.json --benchmark --runs 1000`,
		Args: one("model"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if runs < 1 || warmup < 0 {
				return usageError{errors.New("--runs must be at least 1, and --warmup at least 0")}
			}
			text, err := a.input(input)
			if err != nil {
				return err
			}
			c, err := find(args[0])
			if err != nil {
				return err
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
			timeout := time.Duration(c.Runtime.Timeout)
			var answer any
			if benchmark {
				var values engine.Tensors
				if values, err = m.inputs(cmd.Context(), text); err == nil {
					answer, err = measure(cmd.Context(), m.Model, values, warmup, runs, timeout)
				}
			} else {
				answer, err = infer(cmd.Context(), m, text, timeout)
			}
			if err != nil {
				return err
			}
			if output != "" {
				return writeJSON(output, answer)
			}
			return a.json(answer)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&input, "input", "i", "", "inputs as a JSON object, @FILE with JSON or an image, or - for the standard input")
	f.StringVarP(&output, "output", "o", "", "write the answer to this file")
	f.StringVarP(&provider, "provider", "p", "", "use this provider only")
	f.BoolVar(&benchmark, "benchmark", false, "measure the run instead of printing its outputs")
	f.IntVar(&runs, "runs", 100, "measured runs of a benchmark")
	f.IntVar(&warmup, "warmup", 10, "runs of a benchmark before those")
	return cmd
}

// maxInput bounds the inputs of a run.
const maxInput = 1 << 30

func (a *app) input(from string) ([]byte, error) {
	var in io.Reader
	switch {
	case from == "":
		return nil, usageError{errors.New("the inputs are missing: use --input")}
	case from == "-":
		in = a.in
	case from[0] == '@':
		file, err := os.Open(from[1:])
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	default:
		return []byte(from), nil
	}
	text, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err == nil && len(text) > maxInput {
		err = fmt.Errorf("the inputs are larger than %d MiB", maxInput>>20)
	}
	return text, err
}

// infer runs a JSON object or an image, or each of a list of objects.
func infer(ctx context.Context, m *loaded, text []byte, timeout time.Duration) (any, error) {
	var list []json.RawMessage
	if text = bytes.TrimSpace(text); !bytes.HasPrefix(text, []byte("[")) {
		return once(ctx, m, text, timeout)
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("the inputs are no JSON list: %w", err)
	}
	answers := make([]any, len(list))
	for i, item := range list {
		answer, err := once(ctx, m, item, timeout)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i+1, err)
		}
		answers[i] = answer
	}
	return answers, nil
}

func once(ctx context.Context, m *loaded, text []byte, timeout time.Duration) (engine.Tensors, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	values, err := m.inputs(ctx, text)
	if err != nil {
		return nil, err
	}
	out, err := m.Run(ctx, values)
	if errors.Is(err, engine.ErrTimeout) && errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("the run did not end within runtime.timeout (%s)", timeout)
	}
	return out, err
}

// figures of a benchmark, with the names of the original.
type figures struct {
	Mean       float64 `json:"mean_time_ms"`
	Std        float64 `json:"std_time_ms"` // of the population
	Min        float64 `json:"min_time_ms"`
	Max        float64 `json:"max_time_ms"`
	Median     float64 `json:"median_time_ms"`
	P95        float64 `json:"p95_time_ms"`
	P99        float64 `json:"p99_time_ms"`
	Throughput float64 `json:"throughput_fps"` // 1 / mean
	Provider   string  `json:"provider"`
	Runtime    string  `json:"onnxruntime"`
}

func measure(ctx context.Context, m *engine.Model, values engine.Tensors, warmup, runs int, timeout time.Duration) (f figures, err error) {
	times := make([]float64, 0, runs)
	for i := range warmup + runs {
		bound, cancel := context.WithTimeout(ctx, timeout)
		began := time.Now()
		_, err := m.Run(bound, values)
		took := time.Since(began)
		cancel()
		if err != nil {
			return f, err
		}
		if i >= warmup {
			times = append(times, took.Seconds()*1e3)
		}
	}
	slices.Sort(times)
	for _, t := range times {
		f.Mean += t / float64(runs)
	}
	for _, t := range times {
		f.Std += (t - f.Mean) * (t - f.Mean) / float64(runs)
	}
	f.Std = math.Sqrt(f.Std)
	f.Min, f.Max = times[0], times[runs-1]
	f.Median, f.P95, f.P99 = percentile(times, 50), percentile(times, 95), percentile(times, 99)
	f.Throughput, f.Provider, f.Runtime = 1e3/f.Mean, m.Selection.Provider.Name, engine.Version()
	return f, nil
}

// percentile interpolates linearly between the sorted values.
func percentile(sorted []float64, p float64) float64 {
	at := p / 100 * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[low]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// loopback says whether an address is reached from this machine only.
func loopback(host string) bool {
	return host == "localhost" || strings.HasPrefix(host, "127.") || host == "::1"
}
