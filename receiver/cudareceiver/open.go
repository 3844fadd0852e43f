// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import "github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"

// openProbe returns the probe that the settings ask for. It does nothing before it is started.
func openProbe(c *Config) source {
	return probe.New(probe.Options{
		Root:           c.RootPath,
		RescanInterval: c.RescanInterval,
		LaunchSampling: uint32(c.LaunchSampling), //nolint:gosec // Validate bounds it.
	})
}
