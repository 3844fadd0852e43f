// SPDX-License-Identifier: Apache-2.0

// Package checks finds out whether recording works on this machine, and what to do where it does
// not. gpuflight doctor prints all findings. gpuflight trace runs the quick checks before it starts
// the command. The checks change nothing; only [Recording] initializes the driver.
package checks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

// Finding is the result of one check.
type Finding struct {
	// Check is the name of the check.
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	// Detail is what was found, or the cause of the failure. It is one clause.
	Detail string `json:"detail"`
	// Fix is what the user can do about a failure. It is "" if Detail says so, or if it is unknown.
	Fix string `json:"fix,omitempty"`
	// Optional means that recording works without the result of the check.
	Optional bool `json:"optional,omitempty"`
	// Skipped means that another failure made the check impossible.
	Skipped bool `json:"skipped,omitempty"`
}

// Sentence returns cause and fix in one line.
func (f *Finding) Sentence() string {
	if f.Fix == "" {
		return f.Detail
	}
	return f.Detail + ": " + f.Fix
}

// Settings checks the settings of a recording. errs are the errors of reading them.
func Settings(settings *recorder.Settings, sending *otlp.Settings, errs ...error) Finding {
	f := Finding{Check: "settings"}
	switch err := errors.Join(errs...); {
	case err != nil:
		f.Detail = oneLine(err)
	case settings.Disabled:
		f.Detail, f.Fix = "GPUFLIGHT_DISABLED disables recording", "unset it"
	case sending.File == "" && sending.Off():
		f.Detail, f.Fix = "OTEL_SDK_DISABLED or OTEL_..._EXPORTER=none disable all telemetry", "unset them"
	default:
		f.OK, f.Detail = true, "all variables are valid"
	}
	return f
}

// Driver checks whether a process can find the driver and CUPTI. It loads both libraries and
// initializes nothing.
func Driver(settings *recorder.Settings) Finding {
	f := Finding{Check: "driver"}
	status := cupti.Available(settings.Library)
	switch status.Reason {
	case cupti.ReasonNone:
		f.OK, f.Detail = true, "CUDA "+cudaVersion(status.Driver)
	case cupti.ReasonNoLibrary, cupti.ReasonVersion:
		// A process can have its own, as PyTorch does.
		f.Detail = "only programs that bring their own CUPTI, such as PyTorch, can be recorded: " + status.Detail
	default:
		f.Detail = status.Detail
	}
	return f
}

// Endpoint checks within the timeout whether the destination accepts telemetry.
func Endpoint(ctx context.Context, sending *otlp.Settings, timeout time.Duration) Finding {
	f := Finding{Check: "collector"}
	client, err := otlp.New(*sending, nil)
	if err != nil {
		f.Detail = oneLine(err)
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	problems := client.Diagnose(ctx)
	_ = client.Shutdown(ctx) // the queue is empty
	for _, p := range problems {
		one := Finding{Detail: p.Cause, Fix: p.Fix}
		if f.Detail == "" {
			f.Detail, f.Fix = one.Detail, one.Fix
			continue
		}
		f.Detail, f.Fix = f.Sentence()+"; "+one.Sentence(), ""
	}
	if len(problems) == 0 {
		f.OK, f.Detail = true, "accepts telemetry: "+cmp.Or(sending.File, sending.Signals[otlp.Traces].String())
	}
	return f
}

// Recording checks driver, devices, CUPTI and permission. Each check requires the one before. It
// initializes the driver.
func Recording(settings *recorder.Settings) []Finding {
	checks := []string{"driver", "devices", "cupti", "permission"}
	var found []Finding
	ok := func(format string, args ...any) {
		found = append(found, Finding{Check: checks[len(found)], OK: true, Detail: fmt.Sprintf(format, args...)})
	}
	// wrong adds a failed check and marks all later checks as skipped.
	wrong := func(detail string) []Finding {
		found = append(found, Finding{Check: checks[len(found)], Detail: detail})
		failed := found[len(found)-1].Check
		for len(found) < len(checks) {
			found = append(found, Finding{Check: checks[len(found)], Skipped: true, Detail: "requires a working " + failed})
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

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
