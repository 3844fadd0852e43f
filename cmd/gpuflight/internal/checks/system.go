// SPDX-License-Identifier: Apache-2.0

package checks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/engine"
)

// Capability numbers of linux/capability.h.
const (
	capSysPtrace = 19
	capSysAdmin  = 21
	capPerfmon   = 38
	capBPF       = 39
)

// System is the root of the file system that the checks read, "/" except in tests.
type System struct{ Root string }

func (s System) path(name string) string { return filepath.Join(s.Root, name) }

// parameters is the file in which NVIDIA's kernel module lists its load parameters.
const parameters = "/proc/driver/nvidia/params"

// Counters checks, without opening a window, whether deep windows can work: whether the driver lets
// this user read the GPU's counters, and whether a disassembler is available. Recording needs
// neither.
func (s System) Counters(getenv func(string) string) Finding {
	f := Finding{Check: "deep", Optional: true}
	_, err := deep.ConfigFromEnv(getenv)
	if _, more := engine.SettingsFromEnv(getenv); errors.Join(err, more) != nil {
		return Finding{Check: "deep", Detail: oneLine(errors.Join(err, more))} // the user wants windows
	}
	listings := "SASS listings come from "
	if d, err := cubin.FindDisassembler(""); err != nil {
		listings = oneLine(err)
	} else {
		listings += d.Path
	}
	capabilities := s.effective()
	only, known := s.adminOnly()
	switch {
	case !known:
		f.Detail = "it is unknown whether the driver lets this user read the GPU's counters (" + parameters + " does not say)"
	case !only:
		f.OK, f.Detail = true, "the driver lets every user read the GPU's counters"
	case capabilities&(1<<capSysAdmin) != 0: // root in a container does not have all capabilities
		f.OK, f.Detail = true, "the driver lets only administrators read the GPU's counters: you have CAP_SYS_ADMIN, which suffices"
	case capabilities&(1<<capPerfmon) != 0:
		f.OK, f.Detail = true, "the driver lets only administrators read the GPU's counters: you have CAP_PERFMON, which suffices from R565 on"
	default:
		f.Detail = "deep windows end with no_permission: the driver lets only administrators read the GPU's counters (RmProfilingAdminOnly: 1)"
		f.Fix = "load the module nvidia with NVreg_RestrictProfilingToAdminUsers=0, or give the program CAP_SYS_ADMIN"
	}
	f.Detail += "; " + listings
	return f
}

// effective returns the effective capabilities of this process, or 0 if they are unknown.
func (s System) effective() uint64 {
	text, err := os.ReadFile(s.path("/proc/self/status"))
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
func (s System) adminOnly() (only, known bool) {
	text, err := os.ReadFile(s.path(parameters))
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

// Kernel versions that the receiver cuda requires.
const bpfMajor, bpfMinor = 5, 15

// BPF checks whether a Collector of this user could load the programs of the receiver cuda.
func (s System) BPF() Finding {
	f := Finding{Check: "bpf", Optional: true}
	release, err := os.ReadFile(s.path("/proc/sys/kernel/osrelease"))
	if err != nil {
		f.Detail = "the receiver cuda requires Linux"
		return f
	}
	var major, minor int
	if n, _ := fmt.Sscanf(string(release), "%d.%d", &major, &minor); n == 2 && (major < bpfMajor || major == bpfMajor && minor < bpfMinor) {
		f.Detail = fmt.Sprintf("the receiver cuda requires Linux %d.%d or later, and this is %s", bpfMajor, bpfMinor, strings.TrimSpace(string(release)))
		return f
	}
	if _, err := os.Stat(s.path("/sys/kernel/btf/vmlinux")); err != nil {
		f.Detail, f.Fix = "the receiver cuda requires a kernel with BTF, and /sys/kernel/btf/vmlinux is missing", "boot a kernel with CONFIG_DEBUG_INFO_BTF"
		return f
	}
	capabilities, missing := s.effective(), []string(nil)
	for _, c := range []struct {
		bit  int
		name string
	}{{capBPF, "CAP_BPF"}, {capPerfmon, "CAP_PERFMON"}, {capSysPtrace, "CAP_SYS_PTRACE"}} {
		admin := c.bit != capSysPtrace && capabilities&(1<<capSysAdmin) != 0 // CAP_SYS_ADMIN includes the others
		if capabilities&(1<<c.bit) == 0 && !admin {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		f.Detail = "the receiver cuda records nothing in a Collector of this user, who lacks " + strings.Join(missing, ", ")
		f.Fix = "run the Collector as root, or sudo setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep otelcol-gpuflight"
		return f
	}
	f.OK, f.Detail = true, "eBPF is allowed for the receiver cuda"
	return f
}
