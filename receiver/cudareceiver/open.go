// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
)

// openProbe returns a probe with the configured options, which is not started.
func openProbe(c *Config, log *zap.Logger) source {
	return observed{probe.New(probe.Options{
		Root:           c.RootPath,
		RescanInterval: c.RescanInterval,
		LaunchSampling: uint32(c.LaunchSampling),
		Source:         c.Source,
		WithoutNCCL:    !c.NCCL,
		Log:            func(text string) { log.Warn("CUDA calls are observed in another way", zap.String("reason", text)) },
		Skipped: func(s probe.Skip) {
			log.Warn("a mapped library is not observed; receiver_cuda_files_skipped counts all of them",
				zap.String("cause", s.Reason), zap.Uint32("uid", s.UID), zap.String("path", s.Path), zap.Error(s.Err))
		},
	})}
}

// observed adapts a probe to source.
type observed struct{ *probe.Probe }

// Trace starts a trace.
func (o observed) Trace(options probe.TraceOptions) (tracing, error) {
	t, err := o.Probe.Trace(options)
	if err != nil {
		return nil, err
	}
	return t, nil
}
