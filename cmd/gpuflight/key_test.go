// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/apikey"
)

// runLine runs a command line and returns its status and outputs.
func runLine(t *testing.T, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "keys.json")
	code, out, _ := runLine(t, "key", "--file", path, "list")
	assert.Zero(t, code)
	assert.Equal(t, "no keys\n", out)

	before := time.Now()
	code, out, errs := runLine(t, "key", "create", "ci", "--scope", "ingest,read", "--project", "team-a", "--expires", "90d", "--file", path)
	require.Zero(t, code, errs)
	text := strings.TrimSuffix(out, "\n")
	id := apikey.ID(text)
	require.NotEmpty(t, id, "the key is the only output")
	code, out, errs = runLine(t, "key", "--file", path, "--scope", "admin", "create", "alice")
	require.Zero(t, code, errs)
	admin := apikey.ID(strings.TrimSpace(out))

	keys, err := apikey.Load(path)
	require.NoError(t, err)
	require.Len(t, keys, 2)
	assert.Equal(t, []apikey.Scope{apikey.Ingest, apikey.Read}, keys[0].Scopes)
	assert.WithinRange(t, keys[0].Expires, before.Add(90*24*time.Hour-time.Second), time.Now().Add(90*24*time.Hour))
	stored, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.NotContains(t, string(stored), text[14:])

	code, out, _ = runLine(t, "key", "--file", path, "list")
	assert.Zero(t, code)
	lines := strings.Split(out, "\n")
	require.Len(t, lines, 4)
	assert.Regexp(t, `^ID +NAME +PROJECT +SCOPES +CREATED +EXPIRES$`, lines[0])
	assert.Regexp(t, "^"+id+` +ci +team-a +ingest,read +20.* +20`, lines[1])
	assert.Regexp(t, "^"+admin+` +alice +\(default\) +admin +20.* +never$`, lines[2])
	assert.NotContains(t, out, text[14:])

	code, _, errs = runLine(t, "key", "--file", path, "revoke", id, "unknown1")
	assert.Equal(t, 1, code)
	assert.Equal(t, "gpuflight key: no key has the id \"unknown1\": list shows the ids\n", errs)
	code, out, _ = runLine(t, "key", "--file", path, "revoke", text)
	assert.Zero(t, code)
	assert.Equal(t, "revoked "+id+"\n", out, "without the secret")
	keys, err = apikey.Load(path)
	require.NoError(t, err)
	require.Len(t, keys, 1)
	assert.Equal(t, admin, keys[0].ID)
}

func TestKey_Errors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	for _, tt := range []struct {
		args, want string
	}{
		{"", "use create, list or revoke with the arguments that --help shows"},
		{"create", "use create, list or revoke with the arguments that --help shows"},
		{"create ci", "--scope is empty: use read, ingest, admin, or several with commas"},
		{"create ci --scope write", `--scope: scope "write" is unknown: use read, ingest or admin`},
		{"create ci --scope read,", "--scope is empty: use read, ingest, admin, or several with commas"},
		{"create ci --scope read --expires soon", `--expires "soon": write for example 12h or 90d`},
		{"create ci --scope read --expires 0d", `--expires "0d": write for example 12h or 90d`},
		{"create ci --scope read --expires -1h", `--expires "-1h": write for example 12h or 90d`},
		{"create ci --scope read --project A/B", `project "A/B" is not valid: use at most 64 of a-z, 0-9, dot, dash and underscore`},
		{"revoke", "use create, list or revoke with the arguments that --help shows"},
		{"list --color", "there is no flag --color"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			code, out, errs := runLine(t, append([]string{"key", "--file", path}, strings.Fields(tt.args)...)...)
			assert.Equal(t, 2, code)
			assert.Empty(t, out)
			assert.Equal(t, "gpuflight key: "+tt.want+" (see gpuflight key --help)\n", errs)
			assert.NoFileExists(t, path)
		})
	}
	code, out, _ := runLine(t, "key", "--help")
	assert.Zero(t, code)
	assert.Contains(t, out, "gpuflight key create ci --scope ingest")
}

func TestSessions_Key(t *testing.T) {
	got := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"error":"the key does not have the required scope read"}`))
	}))
	defer s.Close()
	t.Setenv(keyVariable, "gpfl_x")
	code, _, errs := runLine(t, "sessions", "--url", s.URL, "list")
	assert.Equal(t, 1, code)
	assert.Equal(t, "Bearer gpfl_x", got)
	assert.Equal(t, "gpuflight sessions: the Collector rejected the request: the key does not have the required scope read\n", errs)
	t.Setenv(keyVariable, "")
	_, _, _ = runLine(t, "sessions", "--url", s.URL, "list")
	assert.Empty(t, got)
}
