// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"
	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/extension/extensionauth"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/apikey"
	"github.com/gpuflight/gpuflight/internal/collector/audit"
	"github.com/gpuflight/gpuflight/internal/store"
)

const (
	maxBody       = 1 << 20
	maxQueryTime  = 30 * time.Second
	maxConcurrent = 8
	maxQueued     = 64
	liveFor       = time.Minute
)

//go:embed openapi.yaml
var openAPI []byte

type options struct {
	auth     extensionauth.Server // nil for none
	loopback bool
	allowSQL bool
	version  string
	logger   *zap.Logger
}

// server answers all requests.
type server struct {
	options
	access
	store   store.Backend
	api, ui http.Handler
	running chan struct{}
	queued  atomic.Int64
	// These bound the exports, imports, SQL statements and analyses in progress.
	exporting, importing, querying, analysing chan struct{}
	now                                       func() time.Time
	// These are the constants of these names, less in tests.
	stackKernels int64
	searchSpans  int
}

func newServer(b store.Backend, o options) *server {
	s := &server{options: o, store: b, running: make(chan struct{}, maxConcurrent), now: time.Now, stackKernels: stackKernels, searchSpans: maxSearchSpans,
		exporting: make(chan struct{}, maxExports), importing: make(chan struct{}, maxImports), querying: make(chan struct{}, maxStatements),
		analysing: make(chan struct{}, maxAnalyses)}
	s.access = access{authenticator: o.auth, audit: audit.New(o.logger, time.Now), logins: newLogins(time.Now)}
	mux := http.NewServeMux()
	get := func(pattern string, h func(context.Context, *request) (any, error)) {
		mux.Handle("GET /api/v1/"+pattern, s.handler(h, http.StatusOK))
	}
	session := func(pattern string, h func(context.Context, *request) (any, error)) {
		mux.Handle("GET /api/v1/sessions/{session}"+pattern, s.handler(s.ofSession(h), http.StatusOK))
	}
	change := func(pattern string, h func(context.Context, *request) (any, error), status int) {
		mux.Handle(pattern, s.handler(h, status))
	}
	get("health", s.health)
	get("sessions", s.sessions)
	get("traces/{trace}", s.trace)
	get("ranks", s.ranks)
	get("usage", s.usage)
	get("usage/cost", s.cost)
	get("compare", s.compare)
	get("baselines", s.baselines)
	change("PUT /api/v1/baselines/{name}", s.setBaseline, http.StatusNoContent)
	change("DELETE /api/v1/baselines/{name}", s.deleteBaseline, http.StatusNoContent)
	session("", s.overview)
	session("/timeline", s.timeline)
	session("/shapes", s.shapes)
	session("/kernels", s.kernels)
	session("/operations", s.operations)
	session("/spans", s.spans)
	session("/spans/{span}", s.span)
	session("/scopes", s.scopes)
	session("/scopes/{path}/instances", s.instances)
	session("/gaps", s.gaps)
	session("/analysis", s.analysis)
	session("/analysis/gaps", s.analysedGaps)
	session("/analysis/scopes", s.analysedScopes)
	session("/analysis/operations", s.analysedOperations)
	session("/analysis/critical", s.critical)
	session("/stacks", s.stacks)
	session("/functions", s.functions)
	session("/samples", s.samples)
	session("/texts", s.texts)
	session("/texts/{key}", s.text)
	session("/logs", s.logs)
	session("/series", s.series)
	session("/series/{key}", s.points)
	jaeger := func(pattern string, h func(context.Context, *request) (any, error)) {
		mux.Handle("GET /api/"+pattern, s.handler(h, http.StatusOK))
	}
	jaeger("v3/services", s.jaegerServices)
	jaeger("v3/operations", s.jaegerOperations)
	jaeger("v3/traces", s.jaegerTraces)
	jaeger("v3/traces/{trace}", s.jaegerTrace)
	jaeger("v3/trace-summaries", s.jaegerSummaries)
	jaeger("services", s.legacyServices)
	jaeger("services/{service}/operations", s.legacyOperations)
	jaeger("traces", s.legacyTraces)
	jaeger("traces/{trace}", s.legacyTrace)
	change("PUT /api/v1/sessions/{session}/pin", s.pin(true), http.StatusNoContent)
	change("DELETE /api/v1/sessions/{session}/pin", s.pin(false), http.StatusNoContent)
	change("DELETE /api/v1/sessions/{session}", s.delete, http.StatusNoContent)
	mux.HandleFunc("POST "+importPath, s.importFile)
	change("POST "+demoPath, s.loadDemo, http.StatusCreated)
	change("POST "+sqlPath, s.sql, http.StatusOK)
	mux.HandleFunc("GET /api/v1/sessions/{session}/export", s.export)
	mux.HandleFunc("GET /api/v1/openapi.yaml", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(openAPI)
	})
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		// A path with another method: ServeMux answers only without this pattern.
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete} {
			probe := r.Clone(r.Context())
			probe.Method = method
			if _, pattern := mux.Handler(probe); pattern != "/api/" {
				writeError(w, http.StatusMethodNotAllowed, "the path does not support the method "+r.Method)
				return
			}
		}
		writeError(w, http.StatusNotFound, "the API has no such path")
	})
	s.api, s.ui = mux, newAssets()
	return s
}

// ServeHTTP checks the source of a request and passes it on.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
	// A slow client must not keep a connection open.
	s.limitTime(w, maxQueryTime)
	if s.loopback && s.auth == nil && !isLocalName(r.Host) {
		s.refuse(w, r, errors.New("the header Host is not localhost or a loopback address"))
		return
	}
	if !strings.HasPrefix(r.URL.Path, "/api/") {
		s.ui.ServeHTTP(w, r)
		return
	}
	h.Set("Cache-Control", "private, no-cache")
	if !sameOrigin(r) {
		s.refuse(w, r, errors.New("the request comes from another origin"))
		return
	}
	limit := int64(maxBody)
	if r.URL.Path == importPath {
		limit = maxImport
	}
	if r.ContentLength > limit {
		writeError(w, http.StatusRequestEntityTooLarge, "the body is larger than "+strconv.FormatInt(limit, 10)+" bytes")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, limit)
	if r.URL.Path == loginPath {
		s.serveLogin(w, r)
		return
	}
	authenticated, err := s.authenticate(r)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	if r.URL.Path == importPath || strings.HasSuffix(r.URL.Path, "/export") {
		s.limitTime(w, maxImportTime)
	}
	s.audited(s.api, w, authenticated)
}

// limitTime bounds the time to read the body and, from then on, to answer.
func (s *server) limitTime(w http.ResponseWriter, d time.Duration) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(s.now().Add(d))
	_ = rc.SetWriteDeadline(s.now().Add(2 * d))
}

func isLocalName(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// sameOrigin reports whether a browser sent the request from a page of this server. Other clients
// send neither header.
func sameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// request is a request to the API.
type request struct {
	*http.Request
	*query
	project string
	session string
	info    store.SessionInfo
	base    int64
}

// status is an error with a status code.
type status struct {
	code int
	text string
}

func (e *status) Error() string { return e.text }

func notFound(format string, args ...any) error {
	return &status{http.StatusNotFound, fmt.Sprintf(format, args...)}
}

var errNotModified = &status{http.StatusNotModified, ""}

// binaryAnswer is an answer that is no JSON.
type binaryAnswer []byte

func (s *server) handler(h func(context.Context, *request) (any, error), code int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), maxQueryTime)
		defer cancel()
		if !s.begin(ctx) {
			w.Header().Set("Retry-After", "1")
			writeError(w, http.StatusTooManyRequests, "too many requests are in progress")
			return
		}
		defer s.end()
		req, err := newRequest(r)
		var answer any
		if err == nil {
			answer, err = h(ctx, req)
		}
		if req != nil && req.etag != "" && (err == nil || errors.Is(err, errNotModified)) {
			w.Header().Set("ETag", req.etag)
		}
		if err != nil {
			s.fail(ctx, w, err)
			return
		}
		if code == http.StatusNoContent {
			w.WriteHeader(code)
			return
		}
		s.write(w, r, code, answer)
	})
}

// begin waits for one of the slots of concurrent queries. The queue is bounded.
func (s *server) begin(ctx context.Context) bool {
	select {
	case s.running <- struct{}{}:
		return true
	default:
	}
	defer s.queued.Add(-1)
	if s.queued.Add(1) > maxQueued {
		return false
	}
	select {
	case s.running <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *server) end() { <-s.running }

func newRequest(r *http.Request) (*request, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &status{http.StatusBadRequest, "the query string is not valid"}
	}
	req := &request{Request: r, query: &query{values: values}}
	if auth := client.FromContext(r.Context()).Auth; auth != nil {
		req.project, _ = auth.GetAttribute(apikey.AttributeProject).(string)
	}
	req.session = r.PathValue("session")
	if len(req.session) > 256 {
		return nil, &status{http.StatusBadRequest, "parameter session: must have at most 256 bytes"}
	}
	return req, nil
}

// ofSession reads the session of a request, and answers 304 if it has not changed.
func (s *server) ofSession(h func(context.Context, *request) (any, error)) func(context.Context, *request) (any, error) {
	return func(ctx context.Context, r *request) (any, error) {
		base, given := r.absolute("base")
		info, err := s.store.Session(ctx, r.project, r.session)
		if err != nil {
			return nil, err
		}
		r.info, r.base = info, info.FirstNs
		if given {
			r.base = base
		}
		if r.values.Get("source") != "system" {
			tag := fnv.New64a()
			fmt.Fprint(tag, info.FirstNs, info.LastNs, info.Counts, info.Operations, info.KernelNs, info.Bytes, info.Sealed, info.Pinned,
				info.RowsDropped, info.Ended, s.live(&info), s.version, r.URL.RequestURI(), wantsBinary(r.Request))
			r.etag = `W/"` + strconv.FormatUint(tag.Sum64(), 16) + `"`
			if r.err == nil && r.Header.Get("If-None-Match") == r.etag {
				return nil, errNotModified
			}
		}
		return h(ctx, r)
	}
}

func (s *server) live(i *store.SessionInfo) bool {
	return !i.Sealed && s.now().UnixNano()-i.LastNs < int64(liveFor)
}

func wantsBinary(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "application/octet-stream")
}

func (s *server) fail(ctx context.Context, w http.ResponseWriter, err error) {
	var st *status
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &st):
		if st.code == http.StatusNotModified {
			w.WriteHeader(st.code)
			return
		}
		if st.code == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "1")
		}
		writeError(w, st.code, st.text)
	case errors.As(err, &tooLarge):
		writeError(w, http.StatusRequestEntityTooLarge, err.Error())
	case errors.Is(err, store.ErrNotFound):
		writeError(w, http.StatusNotFound, err.Error())
	case errors.Is(err, store.ErrInvalid):
		writeError(w, http.StatusBadRequest, err.Error())
	case errors.Is(err, errors.ErrUnsupported):
		writeError(w, http.StatusNotImplemented, "the store does not support this")
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded):
		writeError(w, http.StatusServiceUnavailable, "the query did not finish within 30 s")
	case ctx.Err() != nil:
		// The client has left.
	case errors.Is(err, store.ErrRetry):
		w.Header().Set("Retry-After", "1")
		writeError(w, http.StatusServiceUnavailable, err.Error())
	default:
		s.logger.Error("query failed", zap.Error(err))
		writeError(w, http.StatusInternalServerError, "the store failed: see the Collector's log")
	}
}

func writeError(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Del("ETag")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text})
}

var gzipWriters = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	return z
}}

func (s *server) write(w http.ResponseWriter, r *http.Request, code int, answer any) {
	contentType := "application/json"
	var body []byte
	if b, ok := answer.(binaryAnswer); ok {
		contentType, body = "application/octet-stream", b
	} else {
		var buf bytes.Buffer
		enc := json.NewEncoder(&buf)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(answer); err != nil {
			s.logger.Error("encode answer", zap.Error(err))
			writeError(w, http.StatusInternalServerError, "the answer cannot be encoded")
			return
		}
		body = buf.Bytes()
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Add("Vary", "Accept, Accept-Encoding")
	if len(body) < 1024 || !acceptsGzip(r) {
		h.Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(code)
		_, _ = w.Write(body)
		return
	}
	h.Set("Content-Encoding", "gzip")
	w.WriteHeader(code)
	z := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(z)
	z.Reset(w)
	_, _ = z.Write(body)
	_ = z.Close()
}

func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(part), ";")
		if (name == "gzip" || name == "*") && strings.TrimSpace(weight) != "q=0" {
			return true
		}
	}
	return false
}
