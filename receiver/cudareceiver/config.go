// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpuflight/gpuflight/internal/glob"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/identity"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
)

// Config is the receiver's configuration.
type Config struct {
	// ControllerConfig holds collection_interval, initial_delay and timeout.
	scraperhelper.ControllerConfig `mapstructure:",squash"`

	// TopKernels is the number of kernel names with series of their own, by process. The other
	// kernels are summed under _other.
	TopKernels int `mapstructure:"top_kernels"`
	// StripTemplates removes template arguments and parameters from kernel names. Kernels that
	// differ only in these are then one.
	StripTemplates bool `mapstructure:"strip_templates"`
	// LaunchSampling is N if the duration of one of N launches is measured, 0 for none.
	LaunchSampling int `mapstructure:"launch_sampling"`
	// NCCL counts collectives at every libnccl that processes load.
	NCCL bool `mapstructure:"nccl"`
	// Source selects where calls are counted: "auto", "driver" or "runtime"; see [probe.Source].
	Source probe.Source `mapstructure:"source"`
	// Trace configures when single calls become spans.
	Trace TraceConfig `mapstructure:"trace"`
	// Include selects processes, by any of its lists. Empty for all.
	Include ProcessesConfig `mapstructure:"include"`
	// Exclude removes processes that Include selects.
	Exclude ProcessesConfig `mapstructure:"exclude"`
	// RescanInterval is the time between two scans for driver libraries that were missed.
	RescanInterval time.Duration `mapstructure:"rescan_interval"`
	// MaxProcesses bounds the processes of one user that have series at a time. All users together
	// have less than twice as many, by the rule of package fair.
	MaxProcesses int `mapstructure:"max_processes"`
	// RootPath is where the host's file system is mounted, with the host's processes in its /proc.
	RootPath string `mapstructure:"root_path"`
	// HostName is the resource's host.name. "" means the name in etc/hostname below RootPath, or that of
	// the system.
	HostName string `mapstructure:"host_name"`
}

// ProcessesConfig selects processes that match any of the lists.
type ProcessesConfig struct {
	// PIDs are process ids on the host.
	PIDs []int32 `mapstructure:"pids"`
	// Cgroups are globs on the path of the process's control group, or of one above it.
	Cgroups []string `mapstructure:"cgroups"`
	// Executables are globs on the name of the executable, without its folders.
	Executables []string `mapstructure:"executables"`
	// prevent unkeyed literal initialization
	_ struct{}
}

const (
	defaultInterval  = 10 * time.Second
	defaultTimeout   = 5 * time.Second
	defaultTop       = 200
	defaultRescan    = 30 * time.Second
	defaultProcesses = 256
	// shortestRescan prevents a mistyped interval from scanning /proc continuously.
	shortestRescan = time.Second
)

func createDefaultConfig() component.Config {
	c := &Config{
		ControllerConfig: scraperhelper.NewDefaultControllerConfig(),
		TopKernels:       defaultTop,
		NCCL:             true,
		Source:           probe.SourceAuto,
		RescanInterval:   defaultRescan,
		MaxProcesses:     defaultProcesses,
		RootPath:         "/",
		Trace:            defaultTrace(),
	}
	c.CollectionInterval = defaultInterval
	c.InitialDelay = time.Second
	c.Timeout = defaultTimeout
	return c
}

// Validate reports invalid settings.
func (c *Config) Validate() error {
	var errs []error
	if c.TopKernels < 0 {
		errs = append(errs, fmt.Errorf("top_kernels is %d: set 0 to have no kernel names, or a number above", c.TopKernels))
	}
	if c.LaunchSampling < 0 || c.LaunchSampling > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("launch_sampling is %d: set 0 to measure no launches, or N for one of N", c.LaunchSampling))
	}
	switch c.Source {
	case probe.SourceAuto, probe.SourceDriver, probe.SourceRuntime:
	default:
		errs = append(errs, fmt.Errorf("source is %q: set auto, driver or runtime", c.Source))
	}
	if c.RescanInterval < shortestRescan {
		errs = append(errs, fmt.Errorf("rescan_interval is %v: set %v or more", c.RescanInterval, shortestRescan))
	}
	if c.MaxProcesses <= 0 {
		errs = append(errs, fmt.Errorf("max_processes is %d: it must be positive", c.MaxProcesses))
	}
	if !path.IsAbs(c.RootPath) {
		errs = append(errs, fmt.Errorf("root_path is %q: it must be absolute, for example /hostfs", c.RootPath))
	}
	errs = append(errs, c.Include.validate("include")...)
	errs = append(errs, c.Exclude.validate("exclude")...)
	return errors.Join(errs...)
}

func (p *ProcessesConfig) validate(name string) (errs []error) {
	for _, pid := range p.PIDs {
		if pid <= 0 {
			errs = append(errs, fmt.Errorf("%s.pids has %d: process ids must be positive", name, pid))
		}
	}
	for _, g := range p.Cgroups {
		if !glob.Valid(g) || !strings.HasPrefix(g, "/") {
			errs = append(errs, fmt.Errorf("%s.cgroups has %q: give a glob on a path, such as \"/kubepods.slice\" or \"/system.slice/docker-*.scope\"", name, g))
		}
	}
	for _, g := range p.Executables {
		if !glob.Valid(g) || g == "" || strings.Contains(g, "/") {
			errs = append(errs, fmt.Errorf("%s.executables has %q: give a glob on a name without folders, such as \"python*\"", name, g))
		}
	}
	return errs
}

func (p *ProcessesConfig) empty() bool {
	return len(p.PIDs)+len(p.Cgroups)+len(p.Executables) == 0
}

// selects reports whether a process has series.
func (c *Config) selects(p *identity.Process) bool {
	return (c.Include.empty() || c.Include.match(p)) && !c.Exclude.match(p)
}

func (p *ProcessesConfig) match(who *identity.Process) bool {
	if slices.Contains(p.PIDs, who.PID) {
		return true
	}
	for _, g := range p.Executables {
		if glob.Match(g, who.Executable) {
			return true
		}
	}
	for _, g := range p.Cgroups {
		for dir := who.Cgroup; dir != ""; dir = path.Dir(dir) {
			if glob.MatchPath(g, dir) {
				return true
			}
			if dir == "/" || !strings.HasPrefix(dir, "/") {
				break
			}
		}
	}
	return false
}
