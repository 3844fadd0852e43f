// SPDX-License-Identifier: Apache-2.0

package apikeyauthextension

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpuflight/gpuflight/internal/apikey"
)

func add(t *testing.T, path, name, project string, expires time.Time, scopes ...apikey.Scope) string {
	k, text, err := apikey.New(name, project, scopes, time.Now(), expires)
	require.NoError(t, err)
	require.NoError(t, apikey.Edit(path, func(keys []apikey.Key) ([]apikey.Key, error) { return append(keys, k), nil }))
	return text
}

func start(t *testing.T, path string) (*apiKeyAuth, *observer.ObservedLogs) {
	core, lines := observer.New(zapcore.DebugLevel)
	f := NewFactory()
	set := extensiontest.NewNopSettings(f.Type())
	set.Logger = zap.New(core)
	cfg := f.CreateDefaultConfig().(*Config)
	cfg.File = path
	ext, err := f.Create(t.Context(), set, cfg)
	require.NoError(t, err)
	require.NoError(t, ext.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() { require.NoError(t, ext.Shutdown(context.Background())) })
	return ext.(*apiKeyAuth), lines
}

func headers(name, value string) map[string][]string { return map[string][]string{name: {value}} }

func TestAuthenticate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	ingest := add(t, path, "ci", "team-a", time.Time{}, apikey.Ingest)
	reader := add(t, path, "reader", "", time.Time{}, apikey.Read)
	expired := add(t, path, "old", "", time.Now().Add(-time.Second), apikey.Ingest)
	a, lines := start(t, path)
	from := client.NewContext(t.Context(), client.Info{Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4000}})

	for _, tt := range []struct {
		what    string
		headers map[string][]string
	}{
		{"HTTP", headers("Authorization", "Bearer "+ingest)},
		{"gRPC", headers("authorization", "bearer "+ingest)},
	} {
		t.Run(tt.what, func(t *testing.T) {
			ctx, err := a.Authenticate(from, tt.headers)
			require.NoError(t, err)
			info := client.FromContext(ctx)
			assert.Equal(t, "10.0.0.1:4000", info.Addr.String(), "other components still see the address")
			assert.Equal(t, "team-a", info.Auth.GetAttribute("project"))
			assert.Equal(t, "ci", info.Auth.GetAttribute("subject"))
			assert.Equal(t, apikey.ID(ingest), info.Auth.GetAttribute("key"))
			assert.Equal(t, []string{"ingest"}, info.Auth.GetAttribute("scopes"))
			assert.Nil(t, info.Auth.GetAttribute("raw"))
			for _, name := range info.Auth.GetAttributeNames() {
				assert.NotNil(t, info.Auth.GetAttribute(name))
			}
		})
	}
	assert.Zero(t, lines.Len())

	for _, tt := range []struct {
		what    string
		headers map[string][]string
		want    string
		id      string
	}{
		{"no header", nil, apikey.ErrMissing.Error(), ""},
		{"other scheme", headers("Authorization", "Basic "+ingest), apikey.ErrMissing.Error(), ""},
		{"two headers", map[string][]string{"authorization": {"Bearer " + ingest}, "Authorization": {"Bearer " + ingest}}, apikey.ErrMissing.Error(), ""},
		{"no key", headers("authorization", "Bearer hello"), "the key is not valid", ""},
		{"wrong secret", headers("authorization", "Bearer "+ingest[:14]+reader[14:]), "the key is not valid", apikey.ID(ingest)},
		{"expired", headers("authorization", "Bearer "+expired), "the key has expired", apikey.ID(expired)},
		{"wrong scope", headers("authorization", "Bearer "+reader), "the key does not have the required scope ingest", apikey.ID(reader)},
	} {
		t.Run(tt.what, func(t *testing.T) {
			lines.TakeAll()
			ctx, err := a.Authenticate(from, tt.headers)
			require.EqualError(t, err, tt.want)
			assert.Nil(t, client.FromContext(ctx).Auth)
			require.Equal(t, 1, lines.Len())
			want := map[string]any{"event": "refused", "client": "10.0.0.1", "reason": tt.want}
			if tt.id != "" {
				want["presented"] = tt.id
			}
			assert.Equal(t, want, lines.All()[0].ContextMap(), "the line has no secret")
		})
	}
}

func TestAuthenticate_Revoked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	text := add(t, path, "ci", "", time.Time{}, apikey.Ingest)
	a, lines := start(t, path)
	h := headers("authorization", "Bearer "+text)
	_, err := a.Authenticate(t.Context(), h)
	require.NoError(t, err)
	require.NoError(t, apikey.Edit(path, func([]apikey.Key) ([]apikey.Key, error) { return nil, nil }))
	_, err = a.Authenticate(t.Context(), h)
	require.ErrorIs(t, err, apikey.ErrInvalid)
	require.Equal(t, 2, lines.Len())
	assert.Equal(t, map[string]any{"event": "keys", "added": []any{}, "revoked": []any{apikey.ID(text)}}, lines.All()[0].ContextMap())
}

func TestStart_Errors(t *testing.T) {
	f := NewFactory()
	set := extensiontest.NewNopSettings(f.Type())
	cfg := f.CreateDefaultConfig().(*Config)
	cfg.File = filepath.Join(t.TempDir(), "keys.json")
	ext, err := f.Create(t.Context(), set, cfg)
	require.NoError(t, err)
	_, err = ext.(*apiKeyAuth).Authenticate(t.Context(), nil)
	require.ErrorIs(t, err, errNotStarted)
	require.EqualError(t, ext.Start(t.Context(), componenttest.NewNopHost()),
		"file: open "+cfg.File+": no such file or directory: create the first key with gpuflight key create")
	require.NoError(t, ext.Shutdown(t.Context()))
	require.EqualError(t, (&Config{}).Validate(), "file is empty: write for example /etc/otelcol-gpuflight/keys.json")
}
