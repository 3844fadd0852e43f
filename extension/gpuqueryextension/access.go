// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/extension/extensionauth"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/apikey"
	"github.com/gpuflight/gpuflight/internal/collector/audit"
)

const (
	loginPath  = "/api/v1/login"
	cookieName = "gpuflight_login"
	maxLogin   = 4 << 10 // bytes of a request
)

// access decides who may use the API. Programs send the header Authorization. Browsers send a key
// once and get a cookie that stands for the header.
type access struct {
	authenticator extensionauth.Server // nil: everybody may use the API
	audit         *audit.Log
	logins        *logins
}

// denied is a request without access.
type denied struct {
	code int
	text string
	// silent means that the request had no credentials to check.
	silent bool
}

func (d *denied) Error() string { return d.text }

// authenticate returns a request whose context has its client, or an error of type denied.
func (a *access) authenticate(r *http.Request) (*http.Request, error) {
	if a.authenticator == nil {
		return r, nil
	}
	headers := r.Header
	if r.Header.Get("Authorization") == "" {
		cookie, err := r.Cookie(cookieName)
		if err != nil {
			return nil, &denied{http.StatusUnauthorized, apikey.ErrMissing.Error(), true}
		}
		header, ok := a.logins.find(cookie.Value)
		if !ok {
			return nil, &denied{http.StatusUnauthorized, "the login has ended: log in again", true}
		}
		// sameOrigin has checked these headers. Browsers send at least one.
		if changes(r) && r.Header.Get("Origin") == "" && r.Header.Get("Sec-Fetch-Site") == "" {
			return nil, &denied{http.StatusForbidden, "a request with a cookie needs the header Origin", false}
		}
		headers = r.Header.Clone()
		headers.Set("Authorization", header)
	}
	scope := apikey.Read
	if changes(r) {
		scope = apikey.Admin
	}
	ctx, err := a.check(r.Context(), scope, headers)
	if err != nil {
		return nil, err
	}
	return r.WithContext(ctx), nil
}

// check asks the authenticator. One that knows no scopes permits everything or nothing.
func (a *access) check(ctx context.Context, scope apikey.Scope, headers http.Header) (context.Context, error) {
	scoped, ok := a.authenticator.(apikey.Authenticator)
	if !ok {
		ctx, err := a.authenticator.Authenticate(ctx, headers)
		if err != nil {
			return nil, &denied{http.StatusUnauthorized, "the request is not authenticated", false}
		}
		return ctx, nil
	}
	ctx, err := scoped.AuthenticateScope(ctx, scope, headers)
	switch {
	case errors.Is(err, apikey.ErrScope):
		return nil, &denied{http.StatusForbidden, err.Error(), false}
	case err != nil:
		return nil, &denied{http.StatusUnauthorized, err.Error(), false}
	}
	return ctx, nil
}

// changes reports whether a request needs the scope admin.
func changes(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead && r.URL.Path != loginPath && r.URL.Path != sqlPath
}

// refuse answers a request without access and records it.
func (a *access) refuse(w http.ResponseWriter, r *http.Request, err error) {
	d := &denied{code: http.StatusForbidden, text: err.Error()}
	errors.As(err, &d)
	if d.code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	a.recordRefused(r, d)
	writeError(w, d.code, d.text)
}

func (a *access) recordRefused(r *http.Request, d *denied) {
	fields := append(audit.Client(r.Context(), r.RemoteAddr), zap.String("reason", d.text),
		zap.String("method", short(r.Method)), zap.String("path", short(r.URL.Path)))
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && apikey.ID(token) != "" {
		fields = append(fields, zap.String("presented", apikey.ID(token)))
	}
	a.audit.RecordLimited("refused", fields...)
}

// short bounds a text of a client.
func short(text string) string { return text[:min(len(text), 300)] }

// event names what a request does for the audit log, or is "" for reads.
func event(r *http.Request) string {
	pin := strings.HasSuffix(r.URL.Path, "/pin")
	baseline := strings.HasPrefix(r.URL.Path, "/api/v1/baselines/")
	switch {
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/export"):
		return "export"
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		return ""
	case r.URL.Path == importPath:
		return "import"
	case r.URL.Path == demoPath:
		return "demo"
	case r.URL.Path == sqlPath:
		return "sql"
	case baseline:
		return "baseline"
	case r.Method == http.MethodPut && pin:
		return "pin"
	case r.Method == http.MethodDelete && pin:
		return "unpin"
	case r.Method == http.MethodDelete:
		return "delete"
	}
	return "request"
}

// audited passes a request on and records it if it is no read.
func (a *access) audited(h http.Handler, w http.ResponseWriter, r *http.Request) {
	name := event(r)
	if name == "" {
		h.ServeHTTP(w, r)
		return
	}
	recorder := &statusRecorder{ResponseWriter: w, code: http.StatusOK}
	defer func() {
		a.audit.Record(name, append(audit.Client(r.Context(), r.RemoteAddr), zap.String("path", short(r.URL.Path)), zap.Int("status", recorder.code))...)
	}()
	h.ServeHTTP(recorder, r)
}

type statusRecorder struct {
	http.ResponseWriter
	code int
}

func (s *statusRecorder) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

// Unwrap is for [http.ResponseController].
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// ReadFrom keeps the fast path of files.
func (s *statusRecorder) ReadFrom(r io.Reader) (int64, error) { return io.Copy(s.ResponseWriter, r) }

// loginState is what the UI shows about access.
type loginState struct {
	// Required means that requests need a key.
	Required bool `json:"required"`
	// Authenticated means that this request has one.
	Authenticated bool     `json:"authenticated"`
	Name          string   `json:"name,omitempty"`
	Project       string   `json:"project,omitempty"`
	Scopes        []string `json:"scopes"`
}

// serveLogin reports, begins and ends the login of a browser.
func (a *access) serveLogin(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		authenticated, err := a.authenticate(r)
		var d *denied
		switch {
		case err == nil:
			a.writeState(w, authenticated.Context())
		case errors.As(err, &d) && d.code == http.StatusUnauthorized:
			if !d.silent {
				a.recordRefused(r, d)
			}
			writeJSON(w, loginState{Required: true, Scopes: []string{}})
		default:
			a.refuse(w, r, err)
		}
	case http.MethodPost:
		a.login(w, r)
	case http.MethodDelete:
		if cookie, err := r.Cookie(cookieName); err == nil && a.logins.remove(cookie.Value) {
			a.audit.RecordLimited("logout", audit.Client(r.Context(), r.RemoteAddr)...)
		}
		a.setCookie(w, r, "", -1)
		w.WriteHeader(http.StatusNoContent)
	default:
		writeError(w, http.StatusMethodNotAllowed, "the path does not support the method "+r.Method)
	}
}

func (a *access) login(w http.ResponseWriter, r *http.Request) {
	if a.authenticator == nil {
		writeError(w, http.StatusNotFound, "the server requires no key")
		return
	}
	if r.Header.Get("Content-Type") != "application/json" {
		writeError(w, http.StatusUnsupportedMediaType, "the body must be JSON with the content type application/json")
		return
	}
	var body struct{ Key string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxLogin)).Decode(&body); err != nil || body.Key == "" {
		writeError(w, http.StatusBadRequest, "the body must be a JSON object with the text key")
		return
	}
	headers := r.Header.Clone()
	headers.Set("Authorization", "Bearer "+strings.TrimSpace(body.Key))
	ctx, err := a.check(r.Context(), apikey.Read, headers)
	if err != nil {
		failed := r.Clone(r.Context())
		failed.Header = headers
		a.refuse(w, failed, err)
		return
	}
	a.setCookie(w, r, a.logins.add(headers.Get("Authorization")), int(loginTime/time.Second))
	a.audit.RecordLimited("login", audit.Client(ctx, r.RemoteAddr)...)
	a.writeState(w, ctx)
}

// setCookie sets or deletes the cookie. A proxy with TLS states it in a header. A client that forges
// the header changes its own cookie only.
func (a *access) setCookie(w http.ResponseWriter, r *http.Request, value string, maxAge int) {
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // G124: without TLS, a browser would not send a secure cookie
		Name: cookieName, Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	})
}

func (a *access) writeState(w http.ResponseWriter, ctx context.Context) {
	state := loginState{Required: a.authenticator != nil, Authenticated: true, Scopes: []string{string(apikey.Read), string(apikey.Admin)}}
	if auth := client.FromContext(ctx).Auth; auth != nil {
		state.Name, _ = auth.GetAttribute(apikey.AttributeSubject).(string)
		state.Project, _ = auth.GetAttribute(apikey.AttributeProject).(string)
		if scopes, ok := auth.GetAttribute(apikey.AttributeScopes).([]string); ok {
			state.Scopes = scopes
		}
	}
	writeJSON(w, state)
}

func writeJSON(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}
