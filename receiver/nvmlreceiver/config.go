// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpuflight/gpuflight/internal/glob"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/device"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/kubelet"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/process"
)

// Config is the receiver's configuration.
type Config struct {
	// ControllerConfig holds collection_interval, initial_delay and timeout. A device that has not
	// answered after four fifths of the timeout is reported as failed. The rest of the timeout is
	// for sending the data. A timeout of 0 means 5 s, or collection_interval if that is shorter.
	scraperhelper.ControllerConfig `mapstructure:",squash"`
	// MetricsBuilderConfig disables single metrics.
	metadata.MetricsBuilderConfig `mapstructure:",squash"`

	// Devices selects devices by index, UUID, or a glob on UUID or name. Empty selects all.
	Devices []string `mapstructure:"devices"`
	// Groups are groups of calls with an interval of their own.
	Groups GroupsConfig `mapstructure:"groups"`
	// XID configures XID errors as logs and in hw.errors.
	XID XIDConfig `mapstructure:"xid"`
	// LibraryPath is the NVML library, or "" for the one that the dynamic linker finds.
	LibraryPath string `mapstructure:"library_path"`
	// RootPath is the mount point of the host's file system. The receiver reads processes from
	// /proc below it.
	RootPath string `mapstructure:"root_path"`
	// HostName is the resource's host.name. "" means the name in etc/hostname below RootPath, or that of
	// the system.
	HostName string `mapstructure:"host_name"`
	// KubeletSocket is the socket of the kubelet's PodResources API. "" means the default path below
	// RootPath, or the default path itself, if there is a socket.
	KubeletSocket string `mapstructure:"kubelet_socket"`
	// MaxProcesses bounds the reported processes per device.
	MaxProcesses int `mapstructure:"max_processes"`
}

// GroupsConfig configures the groups of calls that not every scrape makes.
type GroupsConfig struct {
	// Slow reads limits, highest clocks, ECC and row remapping.
	Slow GroupConfig `mapstructure:"slow"`
	// GPM reads the profiling metrics of Hopper and later.
	GPM GroupConfig `mapstructure:"gpm"`
	// Processes reads the processes on each device.
	Processes GroupConfig `mapstructure:"processes"`
	// Samples reads utilisation as the mean of the driver's buffered samples. If scrapes are
	// further apart than its interval (7 s by default), it also reads the samples between them.
	Samples GroupConfig `mapstructure:"samples"`
}

// GroupConfig is one group.
type GroupConfig struct {
	Enabled bool `mapstructure:"enabled"`
	// Interval is the shortest time between two rounds. 0 means every scrape.
	Interval time.Duration `mapstructure:"interval"`
	// prevent unkeyed literal initialization
	_ struct{}
}

// XIDConfig enables XID errors.
type XIDConfig struct {
	Enabled bool `mapstructure:"enabled"`
	// prevent unkeyed literal initialization
	_ struct{}
}

const (
	defaultInterval  = 10 * time.Second
	defaultTimeout   = 5 * time.Second
	defaultSlow      = time.Minute
	defaultSamples   = 7 * time.Second
	defaultProcesses = 256
	// longestPods is the longest time between two queries of the kubelet. XID errors come between
	// scrapes.
	longestPods = 10 * time.Second
	// longestSamples is the time that the driver's buffer covers; see device.
	longestSamples = 14 * time.Second
)

func createDefaultConfig() component.Config {
	c := &Config{
		ControllerConfig:     scraperhelper.NewDefaultControllerConfig(),
		MetricsBuilderConfig: metadata.NewDefaultMetricsBuilderConfig(),
		Groups: GroupsConfig{
			Slow:      GroupConfig{Enabled: true, Interval: defaultSlow},
			GPM:       GroupConfig{Enabled: true},
			Processes: GroupConfig{Enabled: true},
			Samples:   GroupConfig{Enabled: true, Interval: defaultSamples},
		},
		XID:          XIDConfig{Enabled: true},
		RootPath:     "/",
		MaxProcesses: defaultProcesses,
	}
	c.CollectionInterval = defaultInterval
	c.InitialDelay = time.Second
	return c
}

// timeout bounds a scrape, since the driver may be unresponsive.
func (c *Config) timeout() time.Duration {
	if c.Timeout == 0 {
		return min(defaultTimeout, c.CollectionInterval)
	}
	return c.Timeout
}

// Validate returns an error for invalid settings.
func (c *Config) Validate() error {
	var errs []error
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout is %v: it must not be below 0", c.Timeout))
	}
	if c.CollectionInterval > 0 && c.Timeout > c.CollectionInterval {
		errs = append(errs, fmt.Errorf("timeout is %v: it must not be above collection_interval, which is %v", c.Timeout, c.CollectionInterval))
	}
	for name, g := range map[string]GroupConfig{"slow": c.Groups.Slow, "gpm": c.Groups.GPM, "processes": c.Groups.Processes, "samples": c.Groups.Samples} {
		if g.Interval < 0 {
			errs = append(errs, fmt.Errorf("groups.%s.interval is %v: set 0 for every scrape, or a longer time", name, g.Interval))
		}
	}
	if s := c.Groups.Samples; s.Enabled && (s.Interval == 0 || s.Interval > longestSamples) {
		errs = append(errs, fmt.Errorf("groups.samples.interval is %v: it must be above 0 and at most %v, the period that the driver buffers", s.Interval, longestSamples))
	}
	for _, d := range c.Devices {
		if !glob.Valid(d) || strings.TrimSpace(d) == "" {
			errs = append(errs, fmt.Errorf("devices has %q: give an index such as \"0\", a UUID, or a glob such as \"*H100*\"", d))
		}
	}
	if c.MaxProcesses <= 0 {
		errs = append(errs, errors.New("max_processes must be above 0; to report no processes, set groups.processes.enabled to false"))
	}
	if c.KubeletSocket != "" && !path.IsAbs(c.KubeletSocket) {
		errs = append(errs, fmt.Errorf("kubelet_socket is %q: it must be absolute, for example %s", c.KubeletSocket, kubelet.DefaultSocket))
	}
	if !path.IsAbs(c.RootPath) {
		errs = append(errs, fmt.Errorf("root_path is %q: it must be absolute, for example /hostfs", c.RootPath))
	}
	return errors.Join(errs...)
}

func (c *Config) options() device.Options {
	group := func(g GroupConfig) device.Group { return device.Group{Enabled: g.Enabled, Interval: g.Interval} }
	o := device.Options{
		LibraryPath: c.LibraryPath,
		Interval:    c.CollectionInterval,
		Slow:        group(c.Groups.Slow),
		GPM:         group(c.Groups.GPM),
		Processes:   group(c.Groups.Processes),
		// A scrape always reads the samples. The interval applies between scrapes.
		Samples:      device.Group{Enabled: c.Groups.Samples.Enabled},
		MaxProcesses: c.MaxProcesses,
		Select:       c.Devices,
		Proc:         process.New(c.RootPath),
	}
	return o
}
