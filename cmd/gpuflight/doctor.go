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
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/engine"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

const doctorUsage = `gpuflight doctor says whether gpuflight trace and the SDK can record here: driver, devices, CUPTI, permission,
injection library, settings, collector, deep windows. What is wrong comes with what to do. It exits with 0 only if all
is well.

Usage:
  gpuflight doctor [flags]

Flags:
`

// checkTimeout bounds the attempt to reach the collector.
const checkTimeout = 5 * time.Second

// finding is what one check found.
type finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	// Skipped says that another problem made the check impossible.
	Skipped bool `json:"skipped,omitempty"`
}

var errUnwell = errors.New("something is wrong: see above")

func runDoctor(ctx context.Context, args []string, stdout io.Writer) error {
	fs := flag.NewFlagSet("doctor", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	asJSON := fs.Bool("json", false, "print the findings as JSON")
	library := fs.String("library", "", "`path` of libgpuflight.so, as for gpuflight trace")
	endpoint := fs.String("endpoint", "", "`URL` of the collector, as for gpuflight trace")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			printUsage(stdout, doctorUsage, fs)
			return err
		}
		return &usageError{err}
	}
	if fs.NArg() > 0 {
		return &usageError{fmt.Errorf("%q is not a flag", fs.Arg(0))}
	}
	env := newEnvironment(os.Environ())
	if *endpoint != "" {
		env.setForAll(otlp.EndpointVariable, *endpoint)
		env.unset("GPUFLIGHT_OUTPUT")
	}
	findings := examine(ctx, &env, *library)
	if err := printFindings(stdout, findings, *asJSON); err != nil {
		return err
	}
	for _, f := range findings {
		if !f.OK {
			return errUnwell
		}
	}
	return nil
}

func printFindings(out io.Writer, findings []finding, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(findings)
	}
	for _, f := range findings {
		mark := "ok   "
		switch {
		case f.Skipped:
			mark = "?    "
		case !f.OK:
			mark = "WRONG"
		}
		if _, err := fmt.Fprintf(out, "%s %-12s %s\n", mark, f.Check, f.Detail); err != nil {
			return err
		}
	}
	return nil
}

// examine makes all checks.
func examine(ctx context.Context, env *environment, library string) []finding {
	settings, settingsErr := recorder.SettingsFromEnv(env.get)
	sending, sendingErr := otlp.FromEnv(env.get)
	findings := examineGPU(&settings)
	findings = append(findings, examineLibrary(env, library))
	f := finding{Check: "settings", OK: true, Detail: "all variables make sense"}
	switch err := errors.Join(settingsErr, sendingErr); {
	case err != nil:
		f.OK, f.Detail = false, strings.ReplaceAll(err.Error(), "\n", "; ")
	case settings.Disabled:
		f.OK, f.Detail = false, "GPUFLIGHT_DISABLED switches recording off: unset it"
	case sending.File == "" && sending.Off():
		f.OK, f.Detail = false, "OTEL_SDK_DISABLED or OTEL_..._EXPORTER=none switch everything off: unset them"
	}
	return append(findings, f, examineCollector(ctx, sending, sendingErr), examineWindows(env, parametersOfDriver, statusOfProcess))
}

const (
	// parametersOfDriver is where NVIDIA's kernel module says how it was loaded.
	parametersOfDriver = "/proc/driver/nvidia/params"
	// statusOfProcess is where Linux says what capabilities this process has.
	statusOfProcess = "/proc/self/status"
)

// examineWindows says whether deep windows could work, as far as that shows without opening one: whether the
// driver lets this user read counters, and whether instructions would have a text. Nothing of it is needed to
// record, so only settings that make no sense are wrong.
func examineWindows(env *environment, parameters, status string) finding {
	f := finding{Check: "deep", OK: true}
	_, err := deep.ConfigFromEnv(env.get)
	if _, more := engine.SettingsFromEnv(env.get); errors.Join(err, more) != nil {
		f.OK, f.Detail = false, strings.ReplaceAll(errors.Join(err, more).Error(), "\n", "; ")
		return f
	}
	var parts []string
	switch only, known := adminOnly(parameters); {
	case !known:
		parts = append(parts, "whether the driver lets this user read the GPU's counters is not known ("+parameters+" does not say)")
	case !only:
		parts = append(parts, "the driver lets every user read the GPU's counters")
	default:
		// Root in a container has not all capabilities.
		switch capabilities := effective(status); {
		case capabilities&(1<<capSysAdmin) != 0:
			parts = append(parts, "the driver lets only administrators read the GPU's counters, which you may: you have CAP_SYS_ADMIN")
		case capabilities&(1<<capPerfmon) != 0:
			parts = append(parts, "the driver lets only administrators read the GPU's counters, which you may if it is R565 or newer: you have CAP_PERFMON, and not CAP_SYS_ADMIN")
		default:
			parts = append(parts, "the driver lets only administrators read the GPU's counters, so that deep windows end with no_permission: load it with NVreg_RestrictProfilingToAdminUsers=0, or give the program CAP_SYS_ADMIN")
		}
	}
	if d, err := cubin.FindDisassembler(""); err != nil {
		parts = append(parts, err.Error())
	} else {
		parts = append(parts, "instructions have text by "+d.Path)
	}
	f.Detail = strings.Join(parts, "; ")
	return f
}

// Numbers of capabilities, of linux/capability.h.
const (
	capSysAdmin = 21
	capPerfmon  = 38
)

// effective returns the effective capabilities that a status file names, 0 if it names none.
func effective(path string) uint64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0 // not Linux
	}
	for line := range strings.Lines(string(text)) {
		if digits, ok := strings.CutPrefix(line, "CapEff:"); ok {
			all, err := strconv.ParseUint(strings.TrimSpace(digits), 16, 64)
			if err != nil {
				return 0
			}
			return all
		}
	}
	return 0
}

// adminOnly says whether the driver keeps counters from all but administrators.
func adminOnly(parameters string) (only, known bool) {
	text, err := os.ReadFile(parameters)
	if err != nil {
		return false, false // no driver of NVIDIA's, or another name for it
	}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == "RmProfilingAdminOnly" {
			return strings.TrimSpace(value) != "0", true
		}
	}
	return false, false
}

// examineGPU checks driver, devices, CUPTI and permission, each of which needs the one before.
func examineGPU(settings *recorder.Settings) []finding {
	checks := []string{"driver", "devices", "cupti", "permission"}
	var found []finding
	ok := func(format string, args ...any) {
		found = append(found, finding{Check: checks[len(found)], OK: true, Detail: fmt.Sprintf(format, args...)})
	}
	// wrong ends the checks: those that are left cannot be made.
	wrong := func(detail string) []finding {
		found = append(found, finding{Check: checks[len(found)], Detail: detail})
		failed := found[len(found)-1].Check
		for len(found) < len(checks) {
			found = append(found, finding{Check: checks[len(found)], Skipped: true, Detail: "cannot be seen before the " + failed + " works"})
		}
		return found
	}
	detail := func(err error) string {
		if e := (*cupti.Error)(nil); errors.As(err, &e) {
			return e.Status.Detail
		}
		return err.Error()
	}

	status := cupti.Available(settings.Library)
	switch status.Reason {
	case cupti.ReasonNoDriver, cupti.ReasonUnsupported:
		return wrong(status.Detail)
	}
	if err := cupti.InitDriver(); err != nil {
		e := (*cupti.Error)(nil)
		if errors.As(err, &e) && e.Status.Reason == cupti.ReasonNoDevice {
			ok("CUDA %s", cudaVersion(status.Driver))
		}
		return wrong(detail(err))
	}
	ok("CUDA %s", cudaVersion(status.Driver))

	collector, err := cupti.Open(settings.Collector())
	if err != nil {
		// Devices are the driver's, and it works.
		ok("seen by the driver")
		return wrong(detail(err))
	}
	defer collector.Close()
	devices := collector.Devices()
	if len(devices) == 0 {
		return wrong("the driver shows no device: see whether CUDA_VISIBLE_DEVICES hides them")
	}
	ok("%s", deviceList(devices))
	status = collector.Status()
	ok("version %d, %s", status.Version, status.Library)

	err = collector.Start()
	if err == nil {
		status = collector.Status()
		err = collector.Stop(false)
	}
	if err != nil {
		return wrong(detail(err))
	}
	if missing := recorder.KindNames(status.Missing & settings.Kinds); len(missing) > 0 {
		return wrong("these kinds cannot be recorded: " + strings.Join(missing, ", "))
	}
	ok("%s can be recorded", strings.Join(recorder.KindNames(status.Kinds&settings.Kinds), ", "))
	return found
}

func cudaVersion(v int) string {
	if v <= 0 {
		return "of an unknown version"
	}
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
}

func deviceList(devices []gpuevent.Device) string {
	var names []string
	for i := range devices {
		names = append(names, strings.TrimSpace(devices[i].Name+" "+devices[i].UUID))
	}
	return strings.Join(names, "; ")
}

func examineLibrary(env *environment, named string) finding {
	f := finding{Check: "injection"}
	path, err := findLibrary(named)
	if err != nil {
		f.Detail = err.Error()
		return f
	}
	if v := env.get(injectionVariable); v != "" && filepath.Base(v) != libraryName {
		f.Detail = fmt.Sprintf("%s is set to %s, so another profiler would be there: unset it", injectionVariable, v)
		return f
	}
	f.OK, f.Detail = true, path
	return f
}

func examineCollector(ctx context.Context, sending otlp.Settings, settingsErr error) finding {
	f := finding{Check: "collector"}
	if settingsErr != nil {
		f.Skipped, f.Detail = true, "cannot be seen before the settings are right"
		return f
	}
	client, err := otlp.New(sending, nil)
	if err != nil {
		f.Detail = err.Error()
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err = client.Check(ctx)
	_ = client.Shutdown(ctx) // nothing was handed over
	if err != nil {
		f.Detail = strings.ReplaceAll(err.Error(), "\n", "; ") + ": start a collector there, or set OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_PROTOCOL"
		return f
	}
	f.OK, f.Detail = true, "takes telemetry: "+cmp.Or(sending.File, sending.Signals[otlp.Traces].String())
	return f
}
