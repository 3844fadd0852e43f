// SPDX-License-Identifier: Apache-2.0

//go:build linux

package kubernetes_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// TestOTLP_RefusedWithoutToken runs the Collector with the files of the DaemonSet, on loopback.
func TestOTLP_RefusedWithoutToken(t *testing.T) {
	binary := process.Collector.Find(t)
	const token = "5e1f00d"
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token), 0o600))
	store, backend := process.Sink(t)
	overGRPC, overHTTP := process.FreePort(t), process.FreePort(t)
	_, metrics, _ := strings.Cut(process.FreePort(t), ":")
	for name, value := range map[string]string{
		"GPUFLIGHT_OTLP_ENDPOINT": backend.Endpoint(), "GPUFLIGHT_OTLP_INSECURE": "true",
		"GPUFLIGHT_LISTEN": overGRPC, "GPUFLIGHT_LISTEN_HTTP": overHTTP,
		"GPUFLIGHT_HEALTH": process.FreePort(t), "GPUFLIGHT_METRICS_PORT": metrics,
		"GPUFLIGHT_STATE": filepath.Join(t.TempDir(), "state"), "GPUFLIGHT_LOGS": t.TempDir(),
		"GPUFLIGHT_TOKEN_FILE": file,
	} {
		t.Setenv(name, value)
	}
	var arguments []string
	for _, name := range []string{"agent.yaml", "otlp.yaml"} {
		path, err := filepath.Abs(name)
		require.NoError(t, err)
		arguments = append(arguments, "--config", path)
	}
	// The GPUs and processes of this machine are no part of this test.
	for _, signal := range []string{"traces", "metrics", "logs"} {
		arguments = append(arguments, "--config", "yaml:service::pipelines::"+signal+"::receivers: [otlp]")
	}
	collector := process.Start(t, binary, arguments...)
	collector.WaitOutput(process.Ready, time.Minute)

	connection, err := grpc.NewClient(overGRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { assert.NoError(t, connection.Close()) }()
	client := ptraceotlp.NewGRPCClient(connection)
	span := ptraceotlp.NewExportRequest()
	s := span.Traces().ResourceSpans().AppendEmpty().ScopeSpans().AppendEmpty().Spans().AppendEmpty()
	s.SetTraceID([16]byte{1})
	s.SetSpanID([8]byte{1})
	body, err := span.MarshalJSON()
	require.NoError(t, err)

	for name, header := range map[string]string{
		"none": "", "empty": "Bearer ", "wrong": "Bearer 5e1f00e", "prefix": "Bearer 5e1f00", "no scheme": token, "right": "Bearer " + token,
	} {
		t.Run(name, func(t *testing.T) {
			wantCode, wantStatus := codes.Unauthenticated, http.StatusUnauthorized
			if name == "right" {
				wantCode, wantStatus = codes.OK, http.StatusOK
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+overHTTP+"/v1/traces", strings.NewReader(string(body)))
			require.NoError(t, err)
			request.Header.Set("Content-Type", "application/json")
			if header != "" {
				request.Header.Set("Authorization", header)
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", header)
			}
			_, err = client.Export(ctx, span)
			assert.Equal(t, wantCode, status.Code(err), "over gRPC: %v", err)
			response, err := http.DefaultClient.Do(request)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			assert.Equal(t, wantStatus, response.StatusCode, "over HTTP")
		})
	}
	process.Eventually(t, time.Minute, "both spans with the token arrive", func() bool { return store.Counts().Spans >= 2 })
	assert.NotContains(t, collector.Output(), token, "the token is in the log")
	collector.Stop(time.Minute)
	assert.Equal(t, 2, store.Counts().Spans)
}
