// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/preprocess"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// Limits of requests.
const (
	maxBody     = 64 << 20
	maxBodies   = 512 << 20 // of all bodies that are in memory at a time
	readTimeout = time.Minute
)

// Served is a version of a model that the server answers for.
type Served struct {
	Config    *config.Config
	Info      *onnx.Model
	Model     Model
	Selection engine.Selection
	// Size is the size of the model's file in bytes.
	Size int64
	// Preprocessor prepares texts and images; nil means none.
	Preprocessor *preprocess.Preprocessor

	scheduler *scheduler
}

func (m *Served) version() string { return cmp.Or(m.Config.Model.Version, m.Config.Version) }

// Options of a server.
type Options struct {
	// Models are at least one. A client that names no version gets the first one of a name.
	Models []Served
	// Runtime is the version of ONNX Runtime.
	Runtime string
	// Keys has the bearer tokens of inference requests, which must send one of them. None means that
	// requests need no key.
	Keys []string
	// ReadTimeout is the longest that a body may take to arrive; 0 means a minute.
	ReadTimeout time.Duration
	// MaxBodies bounds the bytes of all bodies in memory; 0 means 512 MiB.
	MaxBodies int64
	// Warn writes a line to the log.
	Warn func(format string, args ...any)
}

// Server answers requests for its models.
type Server struct {
	o       Options
	models  []*Served
	metrics *metrics
	bodies  budget
	handler http.Handler

	warming, stopping atomic.Bool
}

// New returns a server that is ready. Close ends it.
func New(o Options) (*Server, error) {
	o.ReadTimeout, o.MaxBodies = cmp.Or(o.ReadTimeout, readTimeout), cmp.Or(o.MaxBodies, maxBodies)
	s := &Server{o: o, metrics: newMetrics(), bodies: budget{limit: o.MaxBodies}}
	for i := range o.Models {
		m := &o.Models[i]
		if _, err := s.find(m.Config.Name, m.version()); err == nil {
			return nil, fmt.Errorf("the version %s of the model %s is there twice: set model.version in one gpux.yml", m.version(), m.Config.Name)
		}
		s.models = append(s.models, m)
	}
	for _, m := range s.models {
		m.scheduler = newScheduler(m, s.metrics)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("GET /info", s.chosen(func(w http.ResponseWriter, _ *http.Request, m *Served) { reply(w, http.StatusOK, s.info(m)) }))
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, s.openAPI()) })
	mux.HandleFunc("POST /predict", s.chosen(s.inference(s.predict)))
	s.routeV2(mux)
	s.handler = otelhttp.NewHandler(mux, "gpux",
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Method + " " + r.URL.Path }),
		otelhttp.WithFilter(func(r *http.Request) bool { return r.Method == http.MethodPost }))
	return s, nil
}

// WarmUp runs each model with the sizes of its batches. Until it returns, the server is not ready; it
// answers requests nevertheless. A model that fails is reported only, because zeros may be no valid
// input.
func (s *Server) WarmUp(ctx context.Context) {
	s.warming.Store(true)
	for _, m := range s.models {
		if err := m.scheduler.warm(ctx); err != nil && ctx.Err() == nil {
			s.o.Warn("the model %s could not be warmed up: %v", m.Config.Name, err)
		}
	}
	s.warming.Store(false)
}

func (s *Server) ready() bool { return !s.warming.Load() && !s.stopping.Load() }

// find returns a version of a model. An empty version means the first one.
func (s *Server) find(name, version string) (*Served, error) {
	var versions, names []string
	for _, m := range s.models {
		if m.Config.Name == name {
			if version == "" || m.version() == version {
				return m, nil
			}
			versions = append(versions, m.version())
		}
		if !slices.Contains(names, m.Config.Name) {
			names = append(names, m.Config.Name)
		}
	}
	if versions != nil {
		return nil, &problem{http.StatusNotFound, fmt.Sprintf("the model '%s' has no version '%s'; it has %s", name, version, strings.Join(versions, ", "))}
	}
	return nil, &problem{http.StatusNotFound, fmt.Sprintf("there is no model '%s'; there is %s", name, strings.Join(names, ", "))}
}

// choose returns the model that the query of a request names, or the only one.
func (s *Server) choose(r *http.Request) (*Served, error) {
	name := r.URL.Query().Get("model")
	if name == "" {
		if name = s.models[0].Config.Name; slices.ContainsFunc(s.models, func(m *Served) bool { return m.Config.Name != name }) {
			return nil, bad("the server has several models: add ?model=NAME")
		}
	}
	return s.find(name, r.URL.Query().Get("version"))
}

// handler answers for a model.
type handler func(w http.ResponseWriter, r *http.Request, m *Served)

// chosen wraps the handler of a route without the name of the model.
func (s *Server) chosen(f handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		m, err := s.choose(r)
		if err != nil {
			fail(w, err)
			return
		}
		f(w, r, m)
	}
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Close runs what waits and releases the workers. Call it after the last request was answered.
func (s *Server) Close() {
	for _, m := range s.models {
		m.scheduler.close()
	}
}

// Serve answers connections of the listener until ctx ends. Then it is no longer ready, refuses new
// connections, answers the requests that it has, for at most grace, and returns.
func (s *Server) Serve(ctx context.Context, l net.Listener, grace time.Duration) error {
	longest := time.Duration(0)
	for _, m := range s.models {
		longest = max(longest, time.Duration(m.Config.Serving.Timeout))
	}
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: s.o.ReadTimeout, IdleTimeout: 2 * time.Minute,
		WriteTimeout: s.o.ReadTimeout + longest + time.Minute, MaxHeaderBytes: 1 << 16,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.stopping.Store(true)
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := server.Shutdown(bound)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("some requests were not answered within %s", grace)
	}
	s.Close()
	return err
}

// problem is an error with its HTTP status.
type problem struct {
	status int
	text   string
}

func (p *problem) Error() string { return p.text }

func bad(format string, args ...any) error {
	return &problem{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func reply(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"detail":"the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that has gone is not told
}

// status returns the HTTP status and the text of an error.
func status(err error) (int, string) {
	var p *problem
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &p):
		return p.status, p.text
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d MiB", maxBody>>20)
	case errors.Is(err, engine.ErrInput):
		return http.StatusBadRequest, err.Error()
	case errors.Is(err, errBusy):
		return http.StatusTooManyRequests, err.Error()
	case errors.Is(err, errStopping), errors.Is(err, errBodies):
		return http.StatusServiceUnavailable, err.Error()
	case errors.Is(err, engine.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout, "the run did not end within the time limit"
	default:
		return http.StatusInternalServerError, err.Error()
	}
}

// fail answers with an error, and returns its status.
func fail(w http.ResponseWriter, err error) int {
	code, text := status(err)
	if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	reply(w, code, map[string]string{"detail": text, "error": text})
	return code
}

// inference wraps a route with the key, the limits, the time limit and the metrics.
func (s *Server) inference(f func(w http.ResponseWriter, r *http.Request, m *Served, body []byte) error) handler {
	return func(w http.ResponseWriter, r *http.Request, m *Served) {
		began := time.Now()
		trace.SpanFromContext(r.Context()).SetAttributes(attribute.String("gpux.model.name", m.Config.Name), attribute.String("gpux.model.version", m.version()))
		code := http.StatusOK
		var err error
		if s.allowed(r) {
			in := &counted{Reader: http.MaxBytesReader(w, r.Body, maxBody), budget: &s.bodies}
			defer in.forget()
			var body []byte
			if body, err = io.ReadAll(in); err != nil {
				w.Header().Set("Connection", "close") // the answer does not wait for the rest of the body
				err = read(err)
			} else {
				ctx, cancel := context.WithTimeout(r.Context(), time.Duration(m.Config.Serving.Timeout))
				err = f(w, r.WithContext(ctx), m, body)
				cancel()
			}
		} else {
			w.Header().Set("WWW-Authenticate", "Bearer")
			err = &problem{http.StatusUnauthorized, "the API key is missing or wrong"}
		}
		if err != nil {
			code = fail(w, err)
		}
		m.scheduler.metrics.answered(r.Context(), code, time.Since(began))
	}
}

func (s *Server) allowed(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sent, equal := sha256.Sum256([]byte(token)), 0
	for _, key := range s.o.Keys {
		digest := sha256.Sum256([]byte(key))
		equal |= subtle.ConstantTimeCompare(sent[:], digest[:])
	}
	return len(s.o.Keys) == 0 || ok && equal == 1
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	answer := map[string]any{"status": "healthy", "model": s.models[0].Config.Name}
	code := http.StatusOK
	if !s.ready() {
		answer["status"], code = "not ready", http.StatusServiceUnavailable
	}
	if len(s.models) > 1 {
		names := []string{}
		for _, m := range s.models {
			names = append(names, m.Config.Name)
		}
		answer["models"] = slices.Compact(names)
	}
	reply(w, code, answer)
}

// serveMetrics answers with Prometheus's text if it is asked for, and with the provider otherwise.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	accept := r.Header.Get("Accept")
	if strings.Contains(accept, "text/plain") || strings.Contains(accept, "openmetrics") {
		promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(w, r)
		return
	}
	s.chosen(func(w http.ResponseWriter, _ *http.Request, m *Served) {
		reply(w, http.StatusOK, map[string]any{"provider": m.Selection.Provider, "rejected": m.Selection.Rejected, "runtime": s.o.Runtime})
	})(w, r)
}

// predict reads {"input": value, …} or an image, and answers {"output": value, …}.
func (s *Server) predict(w http.ResponseWriter, r *http.Request, m *Served, body []byte) error {
	values, err := Inputs(r.Context(), m.Info, m.Preprocessor, body)
	if err != nil {
		return err
	}
	out, err := m.scheduler.run(r.Context(), values)
	if err != nil {
		return err
	}
	reply(w, http.StatusOK, out)
	return nil
}

// budget is the memory for the bodies of all requests.
type budget struct {
	mutex       sync.Mutex
	used, limit int64
}

// counted is a body that uses the budget until forget.
type counted struct {
	io.Reader
	*budget
	is int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.used+int64(n) > c.limit {
		c.used, c.is = c.used-c.is, 0 // at once, so that no other body fails for this one
		return n, errBodies
	}
	c.used, c.is = c.used+int64(n), c.is+int64(n)
	return n, err
}

func (c *counted) forget() {
	c.mutex.Lock()
	c.used -= c.is
	c.mutex.Unlock()
}

// read says that the body could not be read. It keeps the errors of limits.
func read(err error) error {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large), errors.Is(err, errBodies):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &problem{http.StatusRequestTimeout, "the body did not arrive in time"}
	}
	return bad("the body could not be read: %v", err)
}

// Inputs reads the inputs of a model from a JSON object, or from the file of an image. The preprocessor
// may be nil. The errors are of the client, except that of ctx.
func Inputs(ctx context.Context, info *onnx.Model, p *preprocess.Preprocessor, body []byte) (engine.Tensors, error) {
	values := engine.Tensors{}
	if preprocess.IsImage(body) {
		if p.ImageInput() == "" {
			return nil, bad("the body is an image, and gpux.yml has no preprocessing of images")
		}
		values[p.ImageInput()] = &tensor.Tensor{DType: tensor.String, Shape: []int64{1}, Strings: []string{string(body)}}
		return values, prepare(ctx, p, values)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, bad("the body is no JSON object: %v", err)
	}
	for name, raw := range fields {
		if p.Texts() && name == preprocess.TextInput || p.ImageInput() != "" && name == p.ImageInput() && isText(raw) {
			t, err := tensor.FromJSON(tensor.String, raw, nil)
			if err != nil {
				return nil, bad("Invalid input type for '%s': %v", name, err)
			}
			values[name] = t
			delete(fields, name)
		}
	}
	if err := prepare(ctx, p, values); err != nil {
		return nil, err
	}
	for _, in := range info.Inputs {
		raw, ok := fields[in.Name]
		switch {
		case ok && values[in.Name] != nil:
			return nil, bad("the input '%s' is there, and text gives it too", in.Name)
		case values[in.Name] != nil:
			continue
		case !ok:
			return nil, missing(info, p, in.Name, func(name string) bool { return fields[name] != nil || values[name] != nil })
		}
		t, err := tensor.FromJSON(in.DType, raw, in.Shape())
		if err != nil {
			return nil, bad("Invalid input type for '%s': %v", in.Name, err)
		}
		values[in.Name] = t
		delete(fields, in.Name)
	}
	for name := range fields {
		return nil, bad("the model has no input '%s'", name)
	}
	return values, nil
}

// missing says that an input is missing: the text, if no other input that it gives is there.
func missing(info *onnx.Model, p *preprocess.Preprocessor, name string, given func(name string) bool) error {
	if p.FromText(name) && !slices.ContainsFunc(info.Inputs, func(in onnx.Value) bool { return p.FromText(in.Name) && given(in.Name) }) {
		name = preprocess.TextInput
	}
	return bad("Missing required input: '%s'", name)
}

// isText says whether a JSON value is a string, or a list that begins with one.
func isText(raw []byte) bool {
	raw = bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(raw), []byte("[")))
	return bytes.HasPrefix(raw, []byte(`"`))
}

// prepare makes tensors of the texts and images. Errors except that of ctx are of the client.
func prepare(ctx context.Context, p *preprocess.Preprocessor, values engine.Tensors) error {
	if err := p.Apply(ctx, values); err != nil {
		if ctx.Err() != nil {
			return errors.Join(engine.ErrTimeout, err)
		}
		return bad("%v", err)
	}
	return nil
}
