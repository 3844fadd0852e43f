// SPDX-License-Identifier: Apache-2.0

// Command gpuflight is the command line of this project. Each subcommand has a file of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/gpuflight/gpuflight/internal/version"
)

const usage = `gpuflight records what programs do on the GPU, and works with GPU Flight logs.

Usage:
  gpuflight trace [flags] -- COMMAND...   run a command and record its GPU work: gpuflight trace --help
  gpuflight view [flags] FILE...          open recordings in the web UI: gpuflight view --help
  gpuflight sessions [flags] list|...     list, pin, delete, export and import stored sessions: gpuflight sessions --help
  gpuflight export [flags] SESSION|FILE   write a session for Perfetto, Chrome, pprof and others: gpuflight export --help
  gpuflight key [flags] create|...        create, list and revoke API keys of a Collector: gpuflight key --help
  gpuflight report [flags] FILE...        summarize recordings: gpuflight report --help
  gpuflight diff [flags] A B              say what changed between two recordings or sessions: gpuflight diff --help
  gpuflight mcp [flags] [FILE...]         answer programs with language models (MCP): gpuflight mcp --help
  gpuflight ranks [flags] FILE|SESSION... find the rank of a distributed run that the others waited for: gpuflight ranks --help
  gpuflight deep [flags] PID              open a deep-profiling window in a recorded process: gpuflight deep --help
  gpuflight doctor [flags]                check whether recording works here: gpuflight doctor --help
  gpuflight version                       print the version
`

func main() {
	log.SetOutput(io.Discard) // package net/http writes to it
	if len(os.Args) > 1 && os.Args[1] == "trace" {
		// Signals belong to the traced command: gpuflight catches none before the command runs.
		end := traceCommand(os.Args[2:], os.Stdout, os.Stderr)
		end.die()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// traceCommand runs gpuflight trace and returns how the process must end.
func traceCommand(args []string, stdout, stderr io.Writer) ending {
	end, err := runTrace(args, stdout, stderr)
	if err != nil {
		return ending{code: status("trace", err, stderr)}
	}
	return end
}

// run returns the exit status: 0 for success, 1 for a failure, 2 for a usage error. The command
// deep also returns 3 if its request was refused. For diff see diffUsage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	var err error
	switch args[0] {
	case "deep":
		return deepCommand(ctx, args[1:], stdout, stderr)
	case "diff":
		return diffCommand(ctx, args[1:], stdout, stderr)
	case "doctor":
		err = runDoctor(ctx, args[1:], stdout)
	case "export":
		err = runExport(ctx, args[1:], stdout, stderr)
	case "key":
		err = runKey(ctx, args[1:], stdout)
	case "mcp":
		err = runMCP(ctx, args[1:], stdout, stderr)
	case "ranks":
		err = runRanks(ctx, args[1:], stdout, stderr)
	case "report":
		err = runReport(ctx, args[1:], stdout, stderr)
	case "trace":
		return traceCommand(args[1:], stdout, stderr).code
	case "sessions":
		err = runSessions(ctx, args[1:], stdout)
	case "view":
		err = runView(ctx, args[1:], stdout, stderr)
	case "version", "--version", "-v":
		printVersion(stdout)
	case "help", "--help", "-h":
		if len(args) > 1 && args[0] == "help" {
			return run(ctx, []string{args[1], "--help"}, stdout, stderr)
		}
		fmt.Fprint(stdout, usage)
	default:
		fmt.Fprintf(stderr, "gpuflight: no command %q: see gpuflight help\n", args[0])
		return 2
	}
	return status(args[0], err, stderr)
}

// status prints an error and returns the exit status.
func status(command string, err error, stderr io.Writer) int {
	var wrong *usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "gpuflight %s: %v (see gpuflight %s --help)\n", command, err, command)
		return 2
	}
	// "stat" says nothing to users.
	fmt.Fprintf(stderr, "gpuflight %s: %s\n", command, strings.TrimPrefix(err.Error(), "stat "))
	return 1
}

// parse parses flags before, between and after the other arguments, which it returns. It writes help
// to out. Its errors are usage errors, or flag.ErrHelp.
func parse(fs *flag.FlagSet, args []string, usage string, out io.Writer) (rest []string, err error) {
	for {
		switch err := fs.Parse(args); {
		case errors.Is(err, flag.ErrHelp):
			printUsage(out, usage, fs)
			return nil, err
		case err != nil:
			return nil, &usageError{flagError(err)}
		case fs.NArg() == 0:
			return rest, nil
		}
		rest, args = append(rest, fs.Arg(0)), fs.Args()[1:]
	}
}

// flagError writes flags as users do, with two dashes.
func flagError(err error) error {
	text := err.Error()
	for _, p := range []struct{ from, to string }{
		{"flag provided but not defined: -", "there is no flag --"},
		{"flag needs an argument: -", "a value is missing after --"},
	} {
		if name, ok := strings.CutPrefix(text, p.from); ok {
			return errors.New(p.to + name)
		}
	}
	return errors.New(strings.Replace(text, " for flag -", " for --", 1))
}

// usageError is an error that the user can fix with other flags.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func printVersion(out io.Writer) {
	fmt.Fprintf(out, "gpuflight %s (%s/%s, %s)\n", version.String(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}
