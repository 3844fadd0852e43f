// SPDX-License-Identifier: Apache-2.0

package gpustorageextension

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpuflight/gpuflight/extension/gpustorageextension/internal/metadata"
	"github.com/gpuflight/gpuflight/internal/store"
)

// gpuStorage implements [store.Storage]. It is safe for concurrent use after Start.
type gpuStorage struct {
	cfg       *Config
	set       component.TelemetrySettings
	telemetry *metadata.TelemetryBuilder
	backends  map[string]*backend
}

var _ store.Storage = (*gpuStorage)(nil)

// Start opens all stores and starts their maintenance.
func (g *gpuStorage) Start(ctx context.Context, _ component.Host) (err error) {
	if g.telemetry, err = metadata.NewTelemetryBuilder(g.set); err != nil {
		return err
	}
	g.backends = map[string]*backend{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Shutdown(ctx))
		}
	}()
	configured := g.cfg.backends()
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		cfg := configured[name]
		if g.backends[name], err = openBackend(ctx, name, &cfg, g.set.Logger, g.telemetry); err != nil {
			delete(g.backends, name)
			return fmt.Errorf("backend %s: %w", name, err)
		}
	}
	return g.observe()
}

// observe registers the gauges.
func (g *gpuStorage) observe() error {
	each := func(value func(*backend) (int64, bool)) metric.Int64Callback {
		return func(_ context.Context, o metric.Int64Observer) error {
			for _, b := range g.backends {
				if v, ok := value(b); ok {
					o.Observe(v, b.attributes())
				}
			}
			return nil
		}
	}
	used := func(value func(usage) int64) metric.Int64Callback {
		return each(func(b *backend) (int64, bool) {
			if b.usage == nil {
				return 0, false
			}
			return value(b.usage()), true
		})
	}
	return errors.Join(
		g.telemetry.RegisterExtensionGpuStorageSizeCallback(used(func(u usage) int64 { return u.bytes })),
		g.telemetry.RegisterExtensionGpuStorageSessionsCallback(used(func(u usage) int64 { return u.sessions })),
		g.telemetry.RegisterExtensionGpuStorageWaitingRowsCallback(used(func(u usage) int64 { return u.waiting })),
		g.telemetry.RegisterExtensionGpuStorageCommitsCallback(used(func(u usage) int64 { return u.commits })),
		g.telemetry.RegisterExtensionGpuStorageUnsealedCallback(each(func(b *backend) (int64, bool) {
			return int64(b.active.len()), true
		})),
	)
}

// Backend implements [store.Storage].
func (g *gpuStorage) Backend(name string) (store.Backend, error) {
	names := slices.Sorted(maps.Keys(g.backends))
	if name == "" && len(names) == 1 {
		name = names[0]
	}
	b, ok := g.backends[name]
	switch {
	case ok:
		return b.api, nil
	case name == "":
		return nil, fmt.Errorf("several stores are configured: set backend to one of %s", strings.Join(names, ", "))
	default:
		return nil, fmt.Errorf("backend %q is not configured: set backend to one of %s", name, strings.Join(names, ", "))
	}
}

// Shutdown ends maintenance and closes all stores.
func (g *gpuStorage) Shutdown(ctx context.Context) error {
	if g.telemetry != nil {
		g.telemetry.Shutdown()
	}
	var errs []error
	for _, b := range g.backends {
		errs = append(errs, b.close(ctx))
	}
	return errors.Join(errs...)
}
