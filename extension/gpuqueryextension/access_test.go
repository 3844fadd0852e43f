// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpuflight/gpuflight/internal/apikey"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// keyAuth does what api_key_auth does. test/security has the real one.
type keyAuth struct {
	component.Component
	keys *apikey.Keys
}

func (a keyAuth) Authenticate(ctx context.Context, headers map[string][]string) (context.Context, error) {
	return a.AuthenticateScope(ctx, apikey.Ingest, headers)
}

func (a keyAuth) AuthenticateScope(ctx context.Context, scope apikey.Scope, headers map[string][]string) (context.Context, error) {
	key, err := a.keys.Check(strings.TrimPrefix(http.Header(headers).Get("Authorization"), "Bearer "), scope)
	if err != nil {
		return ctx, err
	}
	return client.NewContext(ctx, client.Info{Auth: keyIdentity{key}}), nil
}

type keyIdentity struct{ key *apikey.Key }

func (i keyIdentity) GetAttribute(name string) any {
	return map[string]any{
		apikey.AttributeProject: i.key.Project, apikey.AttributeSubject: i.key.Name, apikey.AttributeID: i.key.ID,
		apikey.AttributeScopes: []string{string(i.key.Scopes[0])},
	}[name]
}

func (keyIdentity) GetAttributeNames() []string { return nil }

// protected is a server that requires keys.
type protected struct {
	*server
	t     *testing.T
	file  string
	lines *observer.ObservedLogs
	// secrets are all keys. No line of the log may have one.
	secrets []string
}

// protect starts a server with session-a of team-a and session-b of team-b, and with a reader of
// team-a, whose key it returns.
func protect(t *testing.T) (p *protected, reader string) {
	m := storetest.NewMemory()
	for _, team := range []string{"a", "b"} {
		_, err := m.Write(t.Context(), []*store.Batch{{
			Session: "session-" + team, Project: "team-" + team, Spans: []store.Span{{StartNs: 1, EndNs: 2, Span: 1, Trace: store.TraceID{1}}},
		}})
		require.NoError(t, err)
	}
	core, lines := observer.New(zapcore.DebugLevel)
	p = &protected{t: t, file: filepath.Join(t.TempDir(), "keys.json"), lines: lines}
	reader = p.add("reader", "team-a", time.Time{}, apikey.Read)
	keys, err := apikey.Open(p.file, time.Now, func([]string, []string, error) {})
	require.NoError(t, err)
	p.server = newServer(m, options{auth: keyAuth{keys: keys}, loopback: true, allowSQL: true, version: "test", logger: zap.New(core)})
	t.Cleanup(func() {
		for _, line := range lines.All() {
			b, err := json.Marshal(line.ContextMap())
			require.NoError(t, err)
			for _, s := range p.secrets {
				assert.NotContains(t, string(b)+line.Message, s[14:])
			}
		}
	})
	return p, reader
}

func (p *protected) add(name, project string, expires time.Time, scope apikey.Scope) string {
	k, text, err := apikey.New(name, project, []apikey.Scope{scope}, time.Now(), expires)
	require.NoError(p.t, err)
	require.NoError(p.t, apikey.Edit(p.file, func(keys []apikey.Key) ([]apikey.Key, error) { return append(keys, k), nil }))
	p.secrets = append(p.secrets, text)
	return text
}

func (p *protected) revoke(text string) {
	require.NoError(p.t, apikey.Edit(p.file, func(keys []apikey.Key) (left []apikey.Key, _ error) {
		for _, k := range keys {
			if k.ID != apikey.ID(text) {
				left = append(left, k)
			}
		}
		return left, nil
	}))
}

// events returns the new lines of the audit log without the address of the client.
func (p *protected) events() (events []map[string]any) {
	for _, line := range p.lines.TakeAll() {
		assert.Equal(p.t, "audit", line.Message)
		fields := line.ContextMap()
		assert.Equal(p.t, "192.0.2.1", fields["client"])
		delete(fields, "client")
		events = append(events, fields)
	}
	return events
}

func (p *protected) post(body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, loginPath, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

// login logs a browser in and returns its cookie.
func (p *protected) login(key string) string {
	w := p.post(`{"key":"` + key + `"}`)
	require.Equal(p.t, http.StatusOK, w.Code, w.Body)
	require.Len(p.t, w.Result().Cookies(), 1)
	return cookieName + "=" + w.Result().Cookies()[0].Value
}

var (
	pathLine   = regexp.MustCompile(`^  (/\S*):\n`)
	methodLine = regexp.MustCompile(`^    (get|put|post|delete|patch):\n`)
	parameter  = regexp.MustCompile(`\{\w+\}`)
)

// routes returns all methods and paths of openapi.yaml, for a session.
func routes(t *testing.T, session string) [][2]string {
	list := patterns(t)
	for i, route := range list {
		path := strings.NewReplacer("{session}", session, "{trace}", "01000000000000000000000000000000", "{path}", "0").Replace(route[1])
		list[i][1] = parameter.ReplaceAllString(path, "0000000000000001")
	}
	return list
}

// patterns returns all methods and paths of openapi.yaml.
func patterns(t *testing.T) (list [][2]string) {
	path := ""
	for line := range strings.Lines(string(openAPI)) {
		if m := pathLine.FindStringSubmatch(line); m != nil {
			path = "/api/v1" + m[1]
		}
		if m := methodLine.FindStringSubmatch(line); m != nil && path != loginPath {
			list = append(list, [2]string{strings.ToUpper(m[1]), path})
		}
	}
	require.Greater(t, len(list), 20)
	return list
}

func TestAccess_EveryRoute(t *testing.T) {
	p, reader := protect(t)
	revoked := p.add("revoked", "team-a", time.Time{}, apikey.Admin)
	p.revoke(revoked)
	wrong := reader[:14] + revoked[14:]
	expired := p.add("expired", "team-a", time.Now().Add(-time.Hour), apikey.Admin)
	ingest := p.add("ingest", "team-a", time.Time{}, apikey.Ingest)
	all := append(routes(t, "session-a"), [][2]string{
		{"GET", "/api/v3/services"}, {"GET", "/api/v3/operations"}, {"GET", "/api/v3/traces"}, {"GET", "/api/v3/traces/01"}, {"GET", "/api/v3/trace-summaries"},
		{"GET", "/api/services"}, {"GET", "/api/services/a/operations"}, {"GET", "/api/traces"}, {"GET", "/api/traces/01"}, {"GET", "/api/v1/openapi.yaml"}, {"GET", "/api/v1/none"}, {"GET", "/api/"},
		{"PATCH", "/api/v1/sessions/session-a"}, {"POST", "/api/v1/health"},
	}...)
	var forAdmins [][2]string
	for _, route := range all {
		t.Run(route[0]+" "+route[1], func(t *testing.T) {
			for what, key := range map[string]string{"no key": "", "wrong": "Bearer " + wrong, "revoked": "Bearer " + revoked, "expired": "Bearer " + expired, "scheme": "Basic " + reader} {
				w := call(p, route[0], route[1], "Authorization", key)
				assert.Equal(t, http.StatusUnauthorized, w.Code, what)
				assert.Equal(t, "Bearer", w.Header().Get("WWW-Authenticate"))
				assert.Less(t, w.Body.Len(), 120, "one sentence")
			}
			w := call(p, route[0], route[1], "Authorization", "Bearer "+ingest)
			assert.Equal(t, http.StatusForbidden, w.Code)
			if changes(httptest.NewRequest(route[0], route[1], http.NoBody)) {
				forAdmins = append(forAdmins, route)
				w = call(p, route[0], route[1], "Authorization", "Bearer "+reader)
				assert.Equal(t, http.StatusForbidden, w.Code)
				assert.JSONEq(t, `{"error":"the key does not have the required scope"}`, w.Body.String())
			} else {
				w = call(p, route[0], route[1], "Authorization", "Bearer "+reader)
				assert.NotContains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, w.Code)
			}
		})
	}
	assert.Subset(t, forAdmins, [][2]string{
		{"DELETE", "/api/v1/sessions/session-a"}, {"PUT", "/api/v1/sessions/session-a/pin"}, {"DELETE", "/api/v1/sessions/session-a/pin"}, {"POST", importPath},
	})
	_, err := p.store.Session(t.Context(), "team-a", "session-a")
	require.NoError(t, err)
	// A proxy may pass on any host.
	assert.Equal(t, http.StatusOK, call(p, "GET", "/api/v1/sessions", "Host", "gpu.example", "Authorization", "Bearer "+reader).Code)
	assert.Equal(t, http.StatusUnauthorized, call(p, "GET", "/api/v1/sessions", "Host", "gpu.example").Code)
}

func TestAccess_OtherProject(t *testing.T) {
	p, reader := protect(t)
	admin := p.add("admin", "team-a", time.Time{}, apikey.Admin)
	for _, route := range routes(t, "session-b") {
		if !strings.Contains(route[1], "session-b") {
			continue
		}
		w := call(p, route[0], route[1], "Authorization", "Bearer "+admin)
		assert.Equal(t, http.StatusNotFound, w.Code, "%v: %s", route, w.Body)
		assert.NotContains(t, w.Body.String(), "team-b")
	}
	_, err := p.store.Session(t.Context(), "team-b", "session-b")
	require.NoError(t, err)
	for _, path := range []string{"/api/v1/sessions", "/api/v1/usage?by=session", "/api/v1/traces/01000000000000000000000000000000", "/api/v3/traces/01000000000000000000000000000000",
		"/api/traces/01000000000000000000000000000000", "/api/traces?traceID=01000000000000000000000000000000"} {
		w := call(p, http.MethodGet, path, "Authorization", "Bearer "+reader)
		assert.Equal(t, http.StatusOK, w.Code, path)
		assert.NotContains(t, w.Body.String(), "session-b", path)
	}
	w := call(p, http.MethodDelete, "/api/v1/sessions/session-a", "Authorization", "Bearer "+admin)
	assert.Equal(t, http.StatusNoContent, w.Code)
}

func TestLogin(t *testing.T) {
	p, reader := protect(t)
	state := func(header ...string) (s loginState) {
		w := call(p, http.MethodGet, loginPath, header...)
		require.Equal(t, http.StatusOK, w.Code)
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &s))
		return s
	}
	assert.Equal(t, loginState{Required: true, Scopes: []string{}}, state())
	w := p.post(`{"key":" ` + reader + `\n"}`)
	require.Equal(t, http.StatusOK, w.Code)
	cookie := w.Header().Get("Set-Cookie")
	assert.Regexp(t, `^gpuflight_login=[A-Z2-7]{52}; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict$`, cookie)
	assert.NotContains(t, cookie, reader)
	assert.JSONEq(t, `{"required":true,"authenticated":true,"name":"reader","project":"team-a","scopes":["read"]}`, w.Body.String())
	cookie, _, _ = strings.Cut(cookie, ";")
	assert.Equal(t, loginState{Required: true, Authenticated: true, Name: "reader", Project: "team-a", Scopes: []string{"read"}}, state("Cookie", cookie))
	assert.Equal(t, http.StatusOK, call(p, http.MethodGet, "/api/v1/sessions/session-a", "Cookie", cookie).Code)
	assert.Equal(t, http.StatusUnauthorized, call(p, http.MethodGet, "/api/v1/sessions", "Cookie", cookie, "Authorization", "Bearer no").Code, "the header counts")
	p.events()

	w = call(p, http.MethodDelete, loginPath, "Cookie", cookie, "Sec-Fetch-Site", "same-origin")
	assert.Equal(t, http.StatusNoContent, w.Code)
	assert.Equal(t, "gpuflight_login=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict", w.Header().Get("Set-Cookie"))
	w = call(p, http.MethodGet, "/api/v1/sessions", "Cookie", cookie)
	assert.Equal(t, http.StatusUnauthorized, w.Code)
	assert.JSONEq(t, `{"error":"the login has ended: log in again"}`, w.Body.String())
	assert.Equal(t, loginState{Required: true, Scopes: []string{}}, state("Cookie", cookie))

	// A login ends with its key, and after 12 hours.
	cookie = p.login(reader)
	now := time.Now().Add(loginTime - time.Minute)
	p.logins.now = func() time.Time { return now }
	assert.Equal(t, http.StatusOK, call(p, http.MethodGet, "/api/v1/sessions", "Cookie", cookie).Code)
	now = now.Add(2 * time.Minute)
	assert.Equal(t, http.StatusUnauthorized, call(p, http.MethodGet, "/api/v1/sessions", "Cookie", cookie).Code)
	cookie = p.login(reader)
	p.revoke(reader)
	assert.Equal(t, http.StatusUnauthorized, call(p, http.MethodGet, "/api/v1/sessions", "Cookie", cookie).Code)
}

func TestLogin_Secure(t *testing.T) {
	p, reader := protect(t)
	w := p.post(`{"key":"`+reader+`"}`, "X-Forwarded-Proto", "https")
	assert.True(t, w.Result().Cookies()[0].Secure)
	r := httptest.NewRequest(http.MethodPost, "https://gpu.example"+loginPath, strings.NewReader(`{"key":"`+reader+`"}`))
	r.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	p.ServeHTTP(rec, r)
	assert.True(t, rec.Result().Cookies()[0].Secure)
}

func TestLogin_Refused(t *testing.T) {
	p, reader := protect(t)
	ingest := p.add("ingest", "", time.Time{}, apikey.Ingest)
	p.events()
	for _, tt := range []struct {
		what, body string
		header     []string
		code       int
		text       string
	}{
		{"no key", `{"key":""}`, nil, 400, "the body must be a JSON object with the text key"},
		{"not JSON", `key=` + reader, nil, 400, "the body must be a JSON object with the text key"},
		{"large", `{"key":"` + strings.Repeat("x", maxLogin) + `"}`, nil, 400, "the body must be a JSON object with the text key"},
		{"wrong key", `{"key":"hello"}`, nil, 401, "the key is not valid"},
		{"wrong scope", `{"key":"` + ingest + `"}`, nil, 403, "the key does not have the required scope"},
		{"form", `{"key":"` + reader + `"}`, []string{"Content-Type", "text/plain"}, 415, "the body must be JSON with the content type application/json"},
		{"other origin", `{"key":"` + reader + `"}`, []string{"Origin", "https://evil.example"}, 403, "the request comes from another origin"},
		{"other site", `{"key":"` + reader + `"}`, []string{"Sec-Fetch-Site", "cross-site"}, 403, "the request comes from another origin"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			w := p.post(tt.body, tt.header...)
			assert.Equal(t, tt.code, w.Code)
			assert.JSONEq(t, `{"error":"`+tt.text+`"}`, w.Body.String())
			assert.Empty(t, w.Result().Cookies())
			events := p.events()
			if tt.code != 401 && tt.code != 403 {
				assert.Empty(t, events)
				return
			}
			require.Len(t, events, 1)
			assert.Equal(t, "refused", events[0]["event"])
			assert.Equal(t, tt.text, events[0]["reason"])
		})
	}
	assert.Equal(t, http.StatusMethodNotAllowed, call(p, http.MethodPut, loginPath).Code)
	open := newServer(storetest.NewMemory(), options{loopback: true, logger: zap.NewNop()})
	assert.Equal(t, loginState{Authenticated: true, Scopes: []string{"read", "admin"}}, get[loginState](t, open, loginPath))
	p.server = open
	assert.Equal(t, http.StatusForbidden, p.post(`{"key":"x"}`, "Origin", "http://a").Code)
}

// TestAccess_CSRF sends what a browser sends for a page of another site, with the cookie.
func TestAccess_CSRF(t *testing.T) {
	p, _ := protect(t)
	cookie := p.login(p.add("admin", "team-a", time.Time{}, apikey.Admin))
	for what, header := range map[string][]string{
		"other origin":       {"Origin", "https://evil.example"},
		"other port":         {"Origin", "http://localhost:1"},
		"opaque origin":      {"Origin", "null"},
		"other site":         {"Sec-Fetch-Site", "cross-site"},
		"other subdomain":    {"Sec-Fetch-Site", "same-site", "Origin", "http://localhost:8686"},
		"neither header":     {},
		"site without match": {"Sec-Fetch-Site", "same-origin", "Origin", "https://evil.example"},
	} {
		for _, route := range routes(t, "session-a") {
			if changes(httptest.NewRequest(route[0], route[1], http.NoBody)) {
				w := call(p, route[0], route[1], append(header, "Cookie", cookie)...)
				assert.Equal(t, http.StatusForbidden, w.Code, "%s %v", what, route)
			}
		}
		if len(header) > 0 {
			assert.Equal(t, http.StatusForbidden, call(p, http.MethodDelete, loginPath, append(header, "Cookie", cookie)...).Code, what)
		}
	}
	for _, header := range [][]string{{"Origin", "http://localhost:8686"}, {"Sec-Fetch-Site", "same-origin"}} {
		assert.Equal(t, http.StatusNoContent, call(p, http.MethodPut, "/api/v1/sessions/session-a/pin", append(header, "Cookie", cookie)...).Code)
	}
}

func TestAccess_Audit(t *testing.T) {
	p, reader := protect(t)
	admin := p.add("admin", "team-a", time.Time{}, apikey.Admin)
	as := func(key string) []string { return []string{"Authorization", "Bearer " + key} }
	id := apikey.ID(admin)
	for _, tt := range []struct {
		method, path string
		header       []string
		want         map[string]any
	}{
		{"GET", "/api/v1/sessions", as(reader), nil},
		{"GET", "/", nil, nil},
		{"PUT", "/api/v1/sessions/session-a/pin", as(admin), map[string]any{"event": "pin", "path": "/api/v1/sessions/session-a/pin", "status": int64(204), "key": id, "subject": "admin", "project": "team-a"}},
		{"DELETE", "/api/v1/sessions/session-a/pin", as(admin), map[string]any{"event": "unpin", "path": "/api/v1/sessions/session-a/pin", "status": int64(204), "key": id, "subject": "admin", "project": "team-a"}},
		{"GET", "/api/v1/sessions/none/export", as(admin), map[string]any{"event": "export", "path": "/api/v1/sessions/none/export", "status": int64(404), "key": id, "subject": "admin", "project": "team-a"}},
		{"DELETE", "/api/v1/sessions/session-a", as(admin), map[string]any{"event": "delete", "path": "/api/v1/sessions/session-a", "status": int64(204), "key": id, "subject": "admin", "project": "team-a"}},
		{"DELETE", "/api/v1/sessions/session-a", as(reader), map[string]any{
			"event": "refused", "method": "DELETE", "path": "/api/v1/sessions/session-a", "reason": "the key does not have the required scope", "presented": apikey.ID(reader)}},
		{"GET", "/api/v1/sessions", nil, map[string]any{"event": "refused", "method": "GET", "path": "/api/v1/sessions", "reason": apikey.ErrMissing.Error()}},
		{"GET", "/api/v1/login", as("gpfl_x"), map[string]any{"event": "refused", "method": "GET", "path": "/api/v1/login", "reason": "the key is not valid"}},
		{"GET", "/api/v1/login", nil, nil},
	} {
		call(p, tt.method, tt.path, tt.header...)
		events := p.events()
		if tt.want == nil {
			assert.Empty(t, events, "%s %s", tt.method, tt.path)
			continue
		}
		assert.Equal(t, []map[string]any{tt.want}, events)
	}
	r := httptest.NewRequest(http.MethodPost, importPath, strings.NewReader("no store"))
	r.Header.Set("Authorization", "Bearer "+admin)
	p.ServeHTTP(httptest.NewRecorder(), r)
	events := p.events()
	require.NotEmpty(t, events)
	assert.Equal(t, "import", events[len(events)-1]["event"])
	cookie := p.login(reader)
	assert.Equal(t, []map[string]any{{"event": "login", "key": apikey.ID(reader), "subject": "reader", "project": "team-a"}}, p.events())
	call(p, http.MethodDelete, loginPath, "Cookie", cookie)
	assert.Equal(t, []map[string]any{{"event": "logout"}}, p.events())

	// A flood of refused requests is counted, not written.
	for range 200 {
		call(p, http.MethodGet, "/api/v1/sessions")
	}
	p.audit.Flush()
	lines, suppressed := 0, int64(0)
	for _, e := range p.lines.TakeAll() {
		n, ok := e.ContextMap()["suppressed"].(int64)
		suppressed += n
		if _, reason := e.ContextMap()["reason"]; reason || !ok {
			lines++
		}
	}
	assert.Less(t, lines, 100)
	assert.EqualValues(t, 200, int64(lines)+suppressed)
}

func TestAccess_Paths(t *testing.T) {
	p, reader := protect(t)
	for _, path := range []string{
		"/api/v1/sessions/..%2f..%2f..%2fetc%2fpasswd", "/api/v1/sessions/%2e%2e", "/api/v1/sessions/..%2fteam-b%2fsession-b/export",
		"/api/v1/sessions/session-a/texts/..%2f..%2fkeys.json", "/api/v1/sessions/session-a%00", "/api/v1/../../keys.json",
		"/api/v1/sessions/%2fetc%2fpasswd/timeline",
	} {
		w := call(p, http.MethodGet, path, "Authorization", "Bearer "+reader)
		assert.Contains(t, []int{307, 400, 404, 501}, w.Code, "%s: %s", path, w.Body)
		assert.NotContains(t, w.Body.String(), "sha256", path)
		assert.NotContains(t, w.Body.String(), "root:", path)
	}
	index := call(p, http.MethodGet, "/").Body.String()
	for _, path := range []string{"/../../../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/%2e%2e/%2e%2e/etc/passwd", "/assets/../../server.go", "/ui/dist/index.html"} {
		w := call(p, http.MethodGet, path)
		switch w.Code {
		case http.StatusOK:
			assert.Equal(t, index, w.Body.String(), path)
		case http.StatusTemporaryRedirect, http.StatusMovedPermanently:
			assert.NotContains(t, w.Header().Get("Location"), "..", path)
		default:
			assert.Equal(t, http.StatusNotFound, w.Code, path)
		}
	}
}

func TestAssets_Policy(t *testing.T) {
	p, _ := protect(t)
	w := call(p, http.MethodGet, "/")
	policy := w.Header().Get("Content-Security-Policy")
	assert.Contains(t, policy, "default-src 'self';")
	assert.Contains(t, policy, "frame-ancestors 'none'")
	assert.NotContains(t, policy, "unsafe")
	assert.NotContains(t, policy, "*")
	assert.NotContains(t, policy, "http")
	for _, tag := range regexp.MustCompile(`(?s)<script.*?>|<style.*?>| style=| on\w+=`).FindAllString(w.Body.String(), -1) {
		assert.Contains(t, tag, "src=\"/", "the page has inline code: the policy would block it")
	}
	assert.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
}

// TestServer_SlowBody sends a body that never ends. The clock of the server runs late, so that the
// deadline is near.
func TestServer_SlowBody(t *testing.T) {
	p, reader := protect(t)
	p.now = func() time.Time { return time.Now().Add(100*time.Millisecond - maxQueryTime) }
	s := httptest.NewServer(p)
	defer s.Close()
	for _, tt := range []struct{ what, request string }{
		{"login", "POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"},
		{"UI", "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"},
		{"import without a key", "POST /api/v1/import HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"},
		{"read with a body", "GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + reader + "\r\nContent-Length: 100\r\n\r\n{"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			conn, err := net.Dial("tcp", s.Listener.Addr().String())
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
			_, err = conn.Write([]byte(tt.request))
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, bufio.NewReader(conn))
			require.NoError(t, err, "the server closes the connection")
		})
	}
}

func TestConnections(t *testing.T) {
	c := newConnections()
	open := func(host string) *fakeConn {
		f := &fakeConn{address: host + ":1"}
		c.changed(f, http.StateNew)
		return f
	}
	var a []*fakeConn
	for range maxConnections / 2 {
		a = append(a, open("10.0.0.1"))
		assert.False(t, a[len(a)-1].closed)
	}
	refused := open("10.0.0.1")
	assert.True(t, refused.closed, "half of the connections")
	c.changed(refused, http.StateClosed)
	for i := range maxConnections / 2 {
		assert.False(t, open(fmt.Sprintf("10.0.1.%d", i%256)).closed)
	}
	assert.True(t, open("10.0.0.2").closed, "all connections")
	c.changed(a[0], http.StateActive)
	c.changed(a[0], http.StateClosed)
	c.changed(a[0], http.StateClosed)
	assert.False(t, open("10.0.0.2").closed)
	assert.True(t, open("10.0.0.2").closed)
}

type fakeConn struct {
	net.Conn
	address string
	closed  bool
}

func (f *fakeConn) RemoteAddr() net.Addr {
	a, _ := net.ResolveTCPAddr("tcp", f.address)
	return a
}

func (f *fakeConn) Close() error {
	f.closed = true
	return nil
}

func TestLogins_Bound(t *testing.T) {
	now := time.Unix(0, 0)
	l := newLogins(func() time.Time { return now })
	first := l.add("a")
	now = now.Add(time.Second)
	second := l.add("b")
	for range maxLogins - 1 {
		l.add("c")
	}
	_, ok := l.find(first)
	assert.False(t, ok, "the oldest login is evicted")
	header, ok := l.find(second)
	assert.True(t, ok)
	assert.Equal(t, "b", header)
	now = now.Add(loginTime)
	l.add("d")
	assert.Len(t, l.all, 1, "logins that have ended are removed")
	_, ok = l.find("")
	assert.False(t, ok)
}

// uploads is a store that imports any file.
type uploads struct{ store.Backend }

func (uploads) Import(context.Context, string, string) (string, error) { return "imported", nil }

// TestImport_SlowClients uploads more files than may be in progress, without an end. Queries and the
// next imports do not wait for them.
func TestImport_SlowClients(t *testing.T) {
	s := newServer(uploads{storetest.NewMemory()}, options{logger: zap.NewNop()})
	post := func(body io.Reader) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, importPath, body))
		return w
	}
	var ends []*io.PipeWriter
	answers := make(chan *httptest.ResponseRecorder, maxImports)
	for range maxImports {
		r, w := io.Pipe()
		go func() { answers <- post(r) }()
		_, err := w.Write([]byte("x"))
		require.NoError(t, err)
		ends = append(ends, w)
	}
	w := post(strings.NewReader("y"))
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.JSONEq(t, `{"error":"too many imports are in progress"}`, w.Body.String())
	assert.Equal(t, "1", w.Header().Get("Retry-After"))
	assert.Empty(t, s.running, "slow imports take no slot of queries")
	assert.Equal(t, http.StatusOK, call(s, http.MethodGet, "/api/v1/sessions").Code)
	require.NoError(t, ends[0].Close())
	w = <-answers
	assert.Equal(t, http.StatusCreated, w.Code)
	assert.JSONEq(t, `{"session":"imported"}`, w.Body.String())
	for _, end := range ends[1:] {
		require.NoError(t, end.CloseWithError(io.ErrUnexpectedEOF))
		w = <-answers
		assert.Equal(t, http.StatusBadRequest, w.Code)
		assert.JSONEq(t, `{"error":"the body ends too early"}`, w.Body.String())
	}
	assert.Empty(t, s.importing)
	assert.Empty(t, s.running)
}
