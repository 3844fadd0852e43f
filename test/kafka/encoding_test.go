// SPDX-License-Identifier: Apache-2.0

package kafka_test

import (
	"context"
	"testing"

	"github.com/open-telemetry/opentelemetry-collector-contrib/receiver/kafkareceiver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpuflight/gpuflight/extension/encoding/gpuflogencodingextension"
)

// TestEncoding_EverySignal starts the receiver without a broker. The receiver resolves its encoding
// before it connects to Kafka.
func TestEncoding_EverySignal(t *testing.T) {
	own := gpuflogencodingextension.NewFactory()
	set := extensiontest.NewNopSettings(own.Type())
	ext, err := own.Create(context.Background(), set, own.CreateDefaultConfig())
	require.NoError(t, err)
	with := host{component.NewID(own.Type()): ext}

	factory := kafkareceiver.NewFactory()
	start := func(h host) error {
		cfg := factory.CreateDefaultConfig()
		of := map[string]any{"topics": []any{"gpu-trace-events"}, "encoding": own.Type().String()}
		require.NoError(t, confmap.NewFromStringMap(map[string]any{
			"brokers": []any{"127.0.0.1:1"}, "traces": of, "logs": of, "metrics": of,
		}).Unmarshal(cfg))
		next := consumertest.NewNop()
		rs := receivertest.NewNopSettings(factory.Type())
		traces, err := factory.CreateTraces(context.Background(), rs, cfg, next)
		require.NoError(t, err)
		logs, err := factory.CreateLogs(context.Background(), rs, cfg, next)
		require.NoError(t, err)
		metrics, err := factory.CreateMetrics(context.Background(), rs, cfg, next)
		require.NoError(t, err)
		for _, r := range []component.Component{traces, logs, metrics} {
			if err := r.Start(context.Background(), h); err != nil {
				return err // Shutdown would wait forever for a component that was not started
			}
			require.NoError(t, r.Shutdown(context.Background()))
		}
		return nil
	}
	// An unknown encoding, or one without the signal, is an error ("unrecognized traces encoding").
	assert.NoError(t, start(with))
	require.NoError(t, ext.Shutdown(context.Background()))
}
