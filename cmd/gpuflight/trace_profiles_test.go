// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

func TestPrepare_Profiles(t *testing.T) {
	tr, changes := prepared(t, []string{"OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT=http://a:1"}, "--profiles", "--endpoint", "http://b:4318")
	assert.Equal(t, "true", changes["GPUFLIGHT_PROFILES"])
	assert.Contains(t, changes, "-OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT", "one endpoint for all signals")
	assert.True(t, tr.sending.Sends(otlp.Profiles))
	assert.Equal(t, "http://b:4318/v1development/profiles", tr.sending.Signals[otlp.Profiles].URL.String())

	tr, changes = prepared(t, nil)
	assert.NotContains(t, changes, "GPUFLIGHT_PROFILES")
	assert.False(t, tr.sending.Sends(otlp.Profiles))

	library := emptyLibrary(t)
	cfg, err := parseTrace([]string{"--library", library, "--profiles=maybe", "--", "true"}, io.Discard)
	require.NoError(t, err)
	_, err = prepare(cfg, nil)
	require.ErrorContains(t, err, `--profiles is "maybe"; it must be true or false`)
}

func TestSent_ProfilesByPlace(t *testing.T) {
	deliveries := []recorder.Delivery{
		{Signal: "logs", To: "http://c:4318/v1/logs (http/protobuf)", Sent: 3},
		{Signal: "profiles", To: "http://c:4318/v1development/profiles (http/protobuf)", Sent: 2, Unsent: map[string]uint64{"unsupported": 1}, Error: "404 Not Found"},
	}
	assert.Equal(t, []string{"3 log records, 2 profiles went to http://c:4318 (http/protobuf)"}, sent(deliveries))
	assert.Equal(t, []string{"1 profile could not be sent to http://c:4318 (http/protobuf) (unsupported): 404 Not Found"}, unsent(deliveries))
}
