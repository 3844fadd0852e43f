// SPDX-License-Identifier: Apache-2.0

// Command gpuflight is the command line of this project. Each sub-command has a file of its own; main
// only chooses.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/gpuflight/gpuflight/internal/version"
)

const usage = `gpuflight records what programs do on the GPU, and works with GPU Flight logs.

Usage:
  gpuflight trace [flags] -- COMMAND...   run a command and record its GPU work: gpuflight trace --help
  gpuflight report [flags] FILE...        print what recordings hold: gpuflight report --help
  gpuflight deep [flags] PID              look inside the kernels of a recorded process: gpuflight deep --help
  gpuflight doctor [flags]                say whether recording works here: gpuflight doctor --help
  gpuflight version                       say which version this is
`

func main() {
	if len(os.Args) > 1 && os.Args[1] == "trace" {
		// Signals are the command's: none is caught before the command runs.
		end := traceCommand(os.Args[2:], os.Stdout, os.Stderr)
		end.die()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// traceCommand returns how the process is to end.
func traceCommand(args []string, stdout, stderr io.Writer) ending {
	end, err := runTrace(args, stdout, stderr)
	if err != nil {
		return ending{code: status("trace", err, stderr)}
	}
	return end
}

// run returns the exit status: 0 done, 1 it went wrong, 2 it was asked for wrongly; of deep 3 as well, it
// was refused.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	var err error
	switch args[0] {
	case "deep":
		return deepCommand(ctx, args[1:], stdout, stderr)
	case "doctor":
		err = runDoctor(ctx, args[1:], stdout)
	case "report":
		err = runReport(ctx, args[1:], stdout, stderr)
	case "trace":
		return traceCommand(args[1:], stdout, stderr).code
	case "version", "--version", "-v":
		printVersion(stdout)
	case "help", "--help", "-h":
		fmt.Fprint(stdout, usage)
	default:
		fmt.Fprintf(stderr, "gpuflight: no command %q\n\n%s", args[0], usage)
		return 2
	}
	return status(args[0], err, stderr)
}

// status says what went wrong and returns the exit status.
func status(command string, err error, stderr io.Writer) int {
	var wrong *usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "gpuflight %s: %v\nSee gpuflight %s --help.\n", command, err, command)
		return 2
	}
	fmt.Fprintf(stderr, "gpuflight %s: %v\n", command, err)
	return 1
}

// usageError is what the user can put right by other flags.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func printVersion(out io.Writer) {
	fmt.Fprintf(out, "gpuflight %s (%s/%s, %s)\n", version.String(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}
