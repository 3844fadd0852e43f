// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/analysis/compare"
	"github.com/gpuflight/gpuflight/internal/store"
)

// analysisRounds is the number of times that each analysis runs, in a store that has just been opened.
const analysisRounds = 5

// diff compares the session with itself, which reads as much as two sessions of its size.
func diff(ctx context.Context, s store.Store) error {
	source := func() analysis.Source { return analysis.FromReader(s, "", session) }
	c, err := compare.Sources(ctx, source(), source(), analysis.Options{})
	if err != nil {
		return err
	}
	if c.Verdict != compare.Same || len(c.Kernels) == 0 {
		return fmt.Errorf("a session differs from itself: %s", c.Text)
	}
	return nil
}

// analyse measures analyses: the first one of the session, which keeps its parts, and later ones of the
// session and of intervals.
func analyse(ctx context.Context, with func(func(store.Store) error) error) error {
	whole := func(s store.Store, o analysis.Options) (*analysis.Result, error) {
		r, err := analysis.Run(ctx, analysis.FromReader(s, "", session), o)
		if err == nil && (r.Operations == 0 || r.Steps.Count == 0) {
			err = fmt.Errorf("found %d operations and %d steps", r.Operations, r.Steps.Count)
		}
		return r, err
	}
	begin, cpu := time.Now(), processorTime()
	err := with(func(s store.Store) error {
		r, err := whole(s, analysis.Options{})
		if err == nil {
			fmt.Printf("Analysis of %d operations, %d steps: first time %.2f s, %.2f s of processors\n\n", r.Operations, r.Steps.Count,
				time.Since(begin).Seconds(), (processorTime() - cpu).Seconds())
		}
		return err
	})
	t, used := newTimes(), newTimes()
	for i := 0; i < analysisRounds && err == nil; i++ {
		err = with(func(s store.Store) error {
			info, err := s.Session(ctx, "", session)
			if err == nil {
				_, err = s.Lanes(ctx, "", session) // opens the files
			}
			for _, part := range []int64{1, 2, 10, 100, 1000} {
				if err != nil {
					break
				}
				var o analysis.Options
				name := "analysis, whole session"
				if part > 1 {
					length := info.LastNs - info.FirstNs
					o.From = info.FirstNs + (length-length/part)/analysisRounds*int64(i)
					o.To = o.From + length/part
					name = fmt.Sprintf("analysis, 1/%d of the session", part)
				}
				begin, cpu := time.Now(), processorTime()
				_, err = whole(s, o)
				t.add(name, time.Since(begin))
				used.add(name, processorTime()-cpu)
			}
			if err == nil {
				begin, cpu := time.Now(), processorTime()
				err = diff(ctx, s)
				t.add("comparison", time.Since(begin))
				used.add("comparison", processorTime()-cpu)
			}
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("analysis: %w", err)
	}
	fmt.Printf("Analyses after the first, peak RSS %.0f MB\n\n", peakMemory())
	t.print()
	fmt.Println("Time of processors:")
	used.print()
	return nil
}
