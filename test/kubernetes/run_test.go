// SPDX-License-Identifier: Apache-2.0

//go:build linux

package kubernetes

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// TestChart_AgentToGateway runs agent and gateway with their rendered configurations on loopback. A
// program sends a span to the agent, with each key and without one, and the gateway's API returns it.
func TestChart_AgentToGateway(t *testing.T) {
	binary := process.Collector.Find(t)
	objects := load(t, "default")
	keys := get[*core.Secret](objects, "gpuflight-keys").StringData
	gateway, agent, ui := process.FreePort(t), process.FreePort(t), process.FreePort(t)
	start := func(component string, variables map[string]string, more ...string) *process.Process {
		_, metrics, _ := strings.Cut(process.FreePort(t), ":")
		t.Setenv("GPUFLIGHT_METRICS_PORT", metrics)
		t.Setenv("GPUFLIGHT_HEALTH", process.FreePort(t))
		t.Setenv("GPUFLIGHT_STATE", filepath.Join(t.TempDir(), "state"))
		for name, value := range variables {
			t.Setenv(name, value)
		}
		p := process.Start(t, binary, append(write(t, objects, component, t.TempDir()), more...)...)
		p.WaitOutput(process.Ready, time.Minute)
		return p
	}
	start("gateway", map[string]string{
		"GPUFLIGHT_LISTEN": gateway, "GPUFLIGHT_LISTEN_HTTP": process.FreePort(t), "GPUFLIGHT_UI": ui,
	})
	start("agent", map[string]string{
		"GPUFLIGHT_OTLP_ENDPOINT": gateway, "GPUFLIGHT_OTLP_INSECURE": "true", "GPUFLIGHT_KEY": keys["agent"],
		"GPUFLIGHT_LISTEN": process.FreePort(t), "GPUFLIGHT_LISTEN_HTTP": agent, "GPUFLIGHT_LOGS": t.TempDir(),
		// The GPUs of this machine are no part of this test.
	}, "--config", "yaml:service::pipelines::metrics::receivers: [otlp]", "--config", "yaml:service::pipelines::logs::receivers: [otlp]")

	request := func(method, url, key, body string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(text)
	}
	const span = `{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"train"}},
		{"key":"service.instance.id","value":{"stringValue":"0c0ffee0-0000-4000-8000-000000000001"}}]},
		"scopeSpans":[{"spans":[{"traceId":"5b8efff798038103d269b633813fc60c","spanId":"eee19b7ec3c1b174","name":"step","kind":1,
		"startTimeUnixNano":"1764000000000000000","endTimeUnixNano":"1764000001000000000"}]}]}]}`
	for key, want := range map[string]int{"": http.StatusUnauthorized, keys["admin"]: http.StatusUnauthorized, keys["program"]: http.StatusOK} {
		code, text := request(http.MethodPost, "http://"+agent+"/v1/traces", key, span)
		assert.Equal(t, want, code, text)
	}
	code, _ := request(http.MethodGet, "http://"+ui+"/api/v1/sessions", keys["program"], "")
	assert.Equal(t, http.StatusForbidden, code)
	process.Eventually(t, time.Minute, "the gateway has the session", func() bool {
		code, text := request(http.MethodGet, "http://"+ui+"/api/v1/sessions", keys["admin"], "")
		require.Equal(t, http.StatusOK, code, text)
		return strings.Contains(text, "0c0ffee0-0000-4000-8000-000000000001")
	})
}
