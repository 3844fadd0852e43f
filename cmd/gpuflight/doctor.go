// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/cmd/gpuflight/internal/checks"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

const doctorUsage = `gpuflight doctor checks whether gpuflight trace and the SDK can record here, and whether a Collector
with config/local.yaml can work. Each failure comes with its cause and a fix.

  ok      it works
  note    recording works without it
  WRONG   recording does not work, or its data does not arrive; the exit code is 1
  ?       another failure made the check impossible

Usage:
  gpuflight doctor [flags]

Examples:
  gpuflight doctor
  gpuflight doctor --endpoint http://collector:4317 --protocol grpc

Flags:
`

// checkTimeout bounds the attempt to reach the collector.
const checkTimeout = 5 * time.Second

var errChecksFailed = errors.New("a check failed: see above")

func runDoctor(ctx context.Context, args []string, stdout io.Writer) error {
	fs := flag.NewFlagSet("doctor", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	asJSON := fs.Bool("json", false, "print the findings as JSON")
	library := fs.String("library", "", "`path` of libgpuflight.so, as for gpuflight trace")
	endpoint := fs.String("endpoint", "", "`URL` of the collector, as for gpuflight trace")
	protocol := fs.String("protocol", "", "`protocol` of the collector, as for gpuflight trace")
	rest, err := parse(fs, args, doctorUsage, stdout)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return &usageError{fmt.Errorf("%q is not a flag", rest[0])}
	}
	env := newEnvironment(os.Environ())
	if *endpoint != "" {
		env.setForAll(otlp.EndpointVariable, *endpoint)
		env.unset(otlp.OutputVariable)
	}
	if *protocol != "" {
		env.setForAll(otlp.ProtocolVariable, *protocol)
	}
	findings := examine(ctx, &env, *library)
	if err := printFindings(stdout, findings, *asJSON); err != nil {
		return err
	}
	for _, f := range findings {
		if !f.OK && !f.Optional {
			return errChecksFailed
		}
	}
	return nil
}

func printFindings(out io.Writer, findings []checks.Finding, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(findings)
	}
	const indent = "                   " // the width of the first columns
	width := terminalWidth(out)
	for _, f := range findings {
		mark := "ok   "
		switch {
		case f.Skipped:
			mark = "?    "
		case !f.OK && f.Optional:
			mark = "note "
		case !f.OK:
			mark = "WRONG"
		}
		text := wrap(fmt.Sprintf("%s %-12s %s", mark, f.Check, f.Detail), width, indent)
		if f.Fix != "" {
			text += "\n" + wrap(indent+"fix: "+f.Fix, width, indent+"     ")
		}
		if _, err := fmt.Fprintln(out, text); err != nil {
			return err
		}
	}
	return nil
}

// examine runs all checks.
func examine(ctx context.Context, env *environment, library string) []checks.Finding {
	settings, settingsErr := recorder.SettingsFromEnv(env.get)
	sending, sendingErr := otlp.FromEnv(env.get)
	findings := checks.Recording(&settings)
	findings = append(findings, examineLibrary(env, library), checks.Settings(&settings, &sending, settingsErr, sendingErr))
	if sendingErr != nil {
		findings = append(findings, checks.Finding{Check: "collector", Skipped: true, Detail: "requires valid settings"})
	} else {
		findings = append(findings, checks.Endpoint(ctx, &sending, checkTimeout))
	}
	system := checks.System{Root: "/"}
	return append(findings, system.Counters(env.get), checks.NVML(), system.BPF(), checks.Collector(findCollector()),
		checks.Disk(cmp.Or(env.get("GPUFLIGHT_STATE"), "gpuflight-state")), system.Ports(env.get))
}

func examineLibrary(env *environment, named string) checks.Finding {
	f := checks.Finding{Check: "injection"}
	path, err := findLibrary(named)
	if err != nil {
		f.Detail, f.Fix, _ = strings.Cut(err.Error(), ": ")
		return f
	}
	if v := env.get(injectionVariable); v != "" && filepath.Base(v) != libraryName {
		f.Detail, f.Fix = fmt.Sprintf("%s is set to %s, so the driver loads another profiler", injectionVariable, v), "unset it"
		return f
	}
	f.OK, f.Detail = true, path
	return f
}
