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

// finding is the result of one check.
type finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	// Skipped means that another problem made the check impossible.
	Skipped bool `json:"skipped,omitempty"`
}

var errChecksFailed = errors.New("a check failed: see above")

func runDoctor(ctx context.Context, args []string, stdout io.Writer) error {
	fs := flag.NewFlagSet("doctor", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	asJSON := fs.Bool("json", false, "print the findings as JSON")
	library := fs.String("library", "", "`path` of libgpuflight.so, as for gpuflight trace")
	endpoint := fs.String("endpoint", "", "`URL` of the collector, as for gpuflight trace")
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
		env.unset("GPUFLIGHT_OUTPUT")
	}
	findings := examine(ctx, &env, *library)
	if err := printFindings(stdout, findings, *asJSON); err != nil {
		return err
	}
	for _, f := range findings {
		if !f.OK {
			return errChecksFailed
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

// examine runs all checks.
func examine(ctx context.Context, env *environment, library string) []finding {
	settings, settingsErr := recorder.SettingsFromEnv(env.get)
	sending, sendingErr := otlp.FromEnv(env.get)
	findings := examineGPU(&settings)
	findings = append(findings, examineLibrary(env, library))
	f := finding{Check: "settings", OK: true, Detail: "all variables are valid"}
	switch err := errors.Join(settingsErr, sendingErr); {
	case err != nil:
		f.OK, f.Detail = false, strings.ReplaceAll(err.Error(), "\n", "; ")
	case settings.Disabled:
		f.OK, f.Detail = false, "GPUFLIGHT_DISABLED disables recording: unset it"
	case sending.File == "" && sending.Off():
		f.OK, f.Detail = false, "OTEL_SDK_DISABLED or OTEL_..._EXPORTER=none disable all telemetry: unset them"
	}
	return append(findings, f, examineCollector(ctx, sending, sendingErr), examineWindows(env, parametersOfDriver, statusOfProcess))
}

const (
	// parametersOfDriver is the file in which NVIDIA's kernel module lists its load parameters.
	parametersOfDriver = "/proc/driver/nvidia/params"
	// statusOfProcess is the file in which Linux lists the capabilities of this process.
	statusOfProcess = "/proc/self/status"
)

// examineWindows checks, without opening a window, whether deep windows can work. It checks whether
// the driver lets this user read counters, and whether a disassembler is available. Recording needs
// neither, so only invalid settings fail this check.
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
		parts = append(parts, "it is unknown whether the driver lets this user read the GPU's counters ("+parameters+" does not say)")
	case !only:
		parts = append(parts, "the driver lets every user read the GPU's counters")
	default:
		// Root in a container does not have all capabilities.
		switch capabilities := effective(status); {
		case capabilities&(1<<capSysAdmin) != 0:
			parts = append(parts, "the driver lets only administrators read the GPU's counters: you have CAP_SYS_ADMIN, which suffices")
		case capabilities&(1<<capPerfmon) != 0:
			parts = append(parts, "the driver lets only administrators read the GPU's counters: you have CAP_PERFMON, which suffices from R565 on")
		default:
			parts = append(parts, "the driver lets only administrators read the GPU's counters, so that deep windows end with no_permission: load it with NVreg_RestrictProfilingToAdminUsers=0, or give the program CAP_SYS_ADMIN")
		}
	}
	if d, err := cubin.FindDisassembler(""); err != nil {
		parts = append(parts, err.Error())
	} else {
		parts = append(parts, "SASS listings come from "+d.Path)
	}
	f.Detail = strings.Join(parts, "; ")
	return f
}

// Capability numbers of linux/capability.h.
const (
	capSysAdmin = 21
	capPerfmon  = 38
)

// effective returns the effective capabilities in a status file, or 0 if it has none.
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

// adminOnly reports whether the driver restricts counters to administrators.
func adminOnly(parameters string) (only, known bool) {
	text, err := os.ReadFile(parameters)
	if err != nil {
		return false, false // no NVIDIA driver, or another path
	}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == "RmProfilingAdminOnly" {
			return strings.TrimSpace(value) != "0", true
		}
	}
	return false, false
}

// examineGPU checks driver, devices, CUPTI and permission. Each check requires the one before.
func examineGPU(settings *recorder.Settings) []finding {
	checks := []string{"driver", "devices", "cupti", "permission"}
	var found []finding
	ok := func(format string, args ...any) {
		found = append(found, finding{Check: checks[len(found)], OK: true, Detail: fmt.Sprintf(format, args...)})
	}
	// wrong adds a failed check and marks all later checks as skipped.
	wrong := func(detail string) []finding {
		found = append(found, finding{Check: checks[len(found)], Detail: detail})
		failed := found[len(found)-1].Check
		for len(found) < len(checks) {
			found = append(found, finding{Check: checks[len(found)], Skipped: true, Detail: "requires a working " + failed})
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
		// The driver lists the devices, and it works.
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
		return "(unknown version)"
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
		f.Detail = fmt.Sprintf("%s is set to %s, so the driver loads another profiler: unset it", injectionVariable, v)
		return f
	}
	f.OK, f.Detail = true, path
	return f
}

func examineCollector(ctx context.Context, sending otlp.Settings, settingsErr error) finding {
	f := finding{Check: "collector"}
	if settingsErr != nil {
		f.Skipped, f.Detail = true, "requires valid settings"
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
	_ = client.Shutdown(ctx) // the queue is empty
	if err != nil {
		f.Detail = strings.ReplaceAll(err.Error(), "\n", "; ") + ": start a collector there, or set OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_PROTOCOL"
		return f
	}
	f.OK, f.Detail = true, "accepts telemetry: "+cmp.Or(sending.File, sending.Signals[otlp.Traces].String())
	return f
}
