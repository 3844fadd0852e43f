// SPDX-License-Identifier: Apache-2.0

package gpuflgen

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Layout is a generation of GPU Flight's files.
type Layout string

const (
	// A2 is the flat layout: <app>.device.log, <app>.scope.log and <app>.system.log, one line per
	// event.
	A2 Layout = "a2"
	// C3 is the session-folder layout: <session id>/<channel>.<N>.log.gz, columnar batches.
	C3 Layout = "c3"
)

const (
	// defaultRotateBytes is the recorder's default limit for one file.
	defaultRotateBytes = 64 << 20
	// defaultFlushBytes is the size of a channel's write buffer. It keeps the number of system
	// calls for a session of 2 GB low, and the memory small.
	defaultFlushBytes = 64 << 10
	// defaultFlushInterval is the flush period of the recorder.
	defaultFlushInterval = 250 * time.Millisecond
	// maxRotatedFiles is the limit of the A2 recorder. It deletes a file that would get a higher
	// index.
	maxRotatedFiles = 100
	// compactLineBytes separates the two forms of an A2 kernel line. A line with all keys is at
	// least this long.
	compactLineBytes = 700
)

// Config describes the output. Only Dir is required. The comment of each other field states its
// default, which the zero value selects.
type Config struct {
	// Dir is the output folder for the files (A2) or session folders (C3). It is created if
	// missing.
	Dir string
	// Layout is A2 or C3 (default C3).
	Layout Layout
	// App is the application's name (default "minigpt"). It is part of A2's file names and of every
	// record.
	App string
	// Seed selects the session. The same seed and settings produce the same lines.
	Seed uint64
	// Sessions is the number of sessions that Run writes in turn (default 1). In A2 they share the
	// files; in C3 each has its own folder.
	Sessions int
	// Start is the start time of the session. By default it depends only on Seed, or is the time of
	// the call with Live.
	Start time.Time

	// Epochs and StepsPerEpoch are the length of the training (defaults 2 and 10). A limit in
	// Kernels, Lines or Bytes replaces Epochs: the training continues until it reaches that limit.
	Epochs, StepsPerEpoch int
	// Layers is the depth of the model (default 8). A step launches about 34 kernels per layer.
	Layers int
	// Kernels stops the session after exactly that many kernels.
	Kernels int64
	// Lines and Bytes stop the session with the launch that reaches them. Buffered rows and the
	// final records are written in addition.
	Lines, Bytes int64
	// StepInterval is the minimum session time between the starts of two steps (default 40 ms). The
	// simulated data loader uses the remaining time.
	StepInterval time.Duration

	// StackBytes is the length of the host stacks (default 1300 in C3, 160 in A2; negative for
	// none). DistinctStacks is the number of different stacks (default 200).
	StackBytes, DistinctStacks int
	// LineBytes (A2 only) sets the length of kernel lines, including the newline. Lines under 700
	// bytes have short names and only the keys for time and scope. Otherwise the host stack is
	// truncated to fit.
	LineBytes int
	// NoDetails omits launch parameters. In C3 it omits the kernel_detail lines, and with them the
	// scope and stack of each kernel. In A2 it omits the values that has_details=false clears.
	NoDetails bool
	// Samples is the number of PC samples, and of SASS counter values, per step (default 4). A
	// negative value means none, and sets the session's engine to nvidia.trace.
	Samples int
	// Devices is the number of GPUs in the device metrics (default 1). All work runs on the first
	// GPU.
	Devices int

	// RotateBytes is the file size that causes a rotation (default 64 MiB; negative for never).
	RotateBytes int64
	// RotateAfter (C3 only) is the session time after which a file is rotated (default: no limit).
	RotateAfter time.Duration
	// NoCompress leaves rotated files uncompressed.
	NoCompress bool

	// Live writes no record before its own time, as the recorder does.
	Live bool
	// Speed divides the waiting times of Live (default 1). With 2, the session runs twice as fast
	// as the clock, and its timestamps are ahead of it.
	Speed float64
	// FlushInterval is the maximum time that a record stays in memory with Live (default 250 ms).
	FlushInterval time.Duration
	// Pieces splits writes at random positions, also within lines, and delays the last piece.
	Pieces bool
	// Crash makes Run end each session without shutdown; see [Writer.Crash].
	Crash bool
}

// Validate returns an error with the next step for each invalid field of c, or nil.
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

// withDefaults returns c with all defaults, or the error of Validate.
func (c Config) withDefaults() (Config, error) {
	if c.Layout == "" {
		c.Layout = C3
	}
	if c.App == "" {
		c.App = "minigpt"
	}
	setDefault(&c.Sessions, 1)
	setDefault(&c.Epochs, 2)
	setDefault(&c.StepsPerEpoch, 10)
	setDefault(&c.Layers, 8)
	setDefault(&c.StepInterval, 40*time.Millisecond)
	setDefault(&c.DistinctStacks, 200)
	setDefault(&c.Samples, 4)
	setDefault(&c.Devices, 1)
	setDefault(&c.RotateBytes, defaultRotateBytes)
	setDefault(&c.Speed, 1)
	setDefault(&c.FlushInterval, defaultFlushInterval)
	if c.StackBytes == 0 {
		c.StackBytes = 1300
		if c.Layout == A2 {
			c.StackBytes = 160
		}
		if c.LineBytes > 0 {
			c.StackBytes = -1
		}
	}
	return c, c.validate()
}

func setDefault[T int | int64 | float64 | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Dir == "" {
		bad("no output folder: set one")
	}
	if c.Layout != A2 && c.Layout != C3 {
		bad("layout %q: use %q or %q", c.Layout, A2, C3)
	}
	if strings.ContainsAny(c.App, `/\`) || strings.HasPrefix(c.App, ".") {
		bad("application name %q: it becomes a file name, so leave out slashes and a leading dot", c.App)
	}
	for _, f := range []struct {
		name     string
		value    int64
		min, max int64
	}{
		{"sessions", int64(c.Sessions), 1, 1 << 20},
		{"epochs", int64(c.Epochs), 1, 1 << 40},
		{"steps per epoch", int64(c.StepsPerEpoch), 1, 1 << 40},
		{"layers", int64(c.Layers), 1, 1000},
		{"devices", int64(c.Devices), 1, 64},
		{"kernels", c.Kernels, 0, 1 << 40},
		{"lines", c.Lines, 0, 1 << 40},
		{"bytes", c.Bytes, 0, 1 << 50},
		{"line bytes", int64(c.LineBytes), 0, 1 << 20},
		{"stack bytes", int64(c.StackBytes), -1 << 20, 1 << 20},
		{"distinct stacks", int64(c.DistinctStacks), 1, 1 << 16},
		{"samples", int64(c.Samples), -1 << 20, 1 << 16},
		{"step interval", int64(c.StepInterval), 1, int64(time.Hour)},
		{"flush interval", int64(c.FlushInterval), int64(time.Millisecond), int64(time.Hour)},
		{"rotate after", int64(c.RotateAfter), 0, int64(1000 * time.Hour)},
	} {
		if f.value < f.min || f.value > f.max {
			bad("%s is %d: use %d to %d", f.name, f.value, f.min, f.max)
		}
	}
	if !(c.Speed > 0 && c.Speed <= 1e6) {
		bad("speed is %g: use more than 0 and at most 1e6", c.Speed)
	}
	if c.Layout == C3 && c.LineBytes > 0 {
		bad("line length can be asked for in layout %q only: in %q set the stack length", A2, C3)
	}
	if c.Layout == A2 && c.RotateAfter > 0 {
		bad("layout %q rotates by size only: leave rotate after unset", A2)
	}
	return errors.Join(errs...)
}

// bounded reports whether an amount, instead of the number of epochs, ends the session.
func (c Config) bounded() bool { return c.Kernels > 0 || c.Lines > 0 || c.Bytes > 0 }

// compact reports whether A2 kernel lines have their short form.
func (c Config) compact() bool { return c.LineBytes > 0 && c.LineBytes < compactLineBytes }
