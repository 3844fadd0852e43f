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
	// A2 is the flat layout: <app>.device.log, <app>.scope.log, <app>.system.log, one line an event.
	A2 Layout = "a2"
	// C3 is the session-folder layout: <session id>/<channel>.<N>.log.gz, columnar batches.
	C3 Layout = "c3"
)

const (
	// defaultRotateBytes is the recorder's own limit of one file.
	defaultRotateBytes = 64 << 20
	// defaultFlushBytes is how much a channel gathers before one write; large enough that a 2 GB
	// session is not a contest of system calls, small enough to be nothing in memory.
	defaultFlushBytes = 64 << 10
	// defaultFlushInterval is the collector's flush period in the recorder.
	defaultFlushInterval = 250 * time.Millisecond
	// maxRotatedFiles is the A2 recorder's bound: a file that would get a higher index is deleted.
	maxRotatedFiles = 100
	// compactLineBytes separates the two forms of an A2 kernel line: with every key it cannot be
	// shorter than this.
	compactLineBytes = 700
)

// Config says what to write. Only Dir is needed; the zero value of every other field is the default
// named with it.
type Config struct {
	// Dir is the folder that gets the files (A2) or the session folders (C3). It is made if missing.
	Dir string
	// Layout is A2 or C3 (default C3).
	Layout Layout
	// App is the application's name (default "minigpt"): A2's file names and every record carry it.
	App string
	// Seed selects the session; the same seed and settings give the same lines.
	Seed uint64
	// Sessions is the number of sessions that Run writes one after the other (default 1). In A2 they
	// share the files, in C3 each has its folder.
	Sessions int
	// Start is the session's first moment. The zero time stands for one that depends only on Seed;
	// with Live it stands for the moment of the call.
	Start time.Time

	// Epochs and StepsPerEpoch are the length of the training (defaults 2 and 10). A bound of Kernels,
	// Lines or Bytes replaces Epochs: the training goes on until it is reached.
	Epochs, StepsPerEpoch int
	// Layers is the depth of the model (default 8). A step launches about 34 kernels a layer.
	Layers int
	// Kernels stops the session after exactly that many kernels.
	Kernels int64
	// Lines and Bytes stop it with the launch that reaches them; what is gathered and the records of
	// the end come on top.
	Lines, Bytes int64
	// StepInterval is the least session time between the starts of two steps (default 40 ms). The
	// rest of it is the data loader's.
	StepInterval time.Duration

	// StackBytes is the length of the host stacks (default 1300 in C3, 160 in A2; negative for none),
	// DistinctStacks how many different ones there are (default 200).
	StackBytes, DistinctStacks int
	// LineBytes (A2 only) asks for kernel lines of that length, newline included. Under 700 the lines carry short names
	// and only the keys that place a kernel in time and scope; otherwise the host stack is cut to fit.
	LineBytes int
	// NoDetails leaves out launch parameters: in C3 the kernel_detail lines and with them scope and
	// stack of each kernel, in A2 the values that has_details=false blanks.
	NoDetails bool
	// Samples is the number of PC samples, and of SASS counter values, per step (default 4; negative
	// for none, and then the session says engine nvidia.trace).
	Samples int
	// Devices is the number of GPUs in the device metrics (default 1). Work runs on the first.
	Devices int

	// RotateBytes is the size at which a file is rotated (default 64 MiB; negative for never).
	RotateBytes int64
	// RotateAfter (C3 only) rotates a window that is older, in session time (default off).
	RotateAfter time.Duration
	// NoCompress leaves rotated files plain instead of gzip.
	NoCompress bool

	// Live writes each record no earlier than the moment it tells of, as the recorder would.
	Live bool
	// Speed divides the waiting of Live (default 1; 2 is twice as fast as the clock, and then
	// timestamps run ahead of it).
	Speed float64
	// FlushInterval is how long a record may stay in memory with Live (default 250 ms).
	FlushInterval time.Duration
	// Pieces tears the writes: random lengths, partial lines included, the last piece held back.
	Pieces bool
	// Crash makes Run end each session without shutdown, see [Writer.Crash].
	Crash bool
}

// Validate says what of c cannot be written and what to change; nil if all can.
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

// withDefaults returns c with every default filled in, or an error that says what to change.
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

// bounded says whether an amount, and not the number of epochs, ends the session.
func (c Config) bounded() bool { return c.Kernels > 0 || c.Lines > 0 || c.Bytes > 0 }

// compact says whether A2 kernel lines take their short form.
func (c Config) compact() bool { return c.LineBytes > 0 && c.LineBytes < compactLineBytes }
