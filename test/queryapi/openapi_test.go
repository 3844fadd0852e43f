// SPDX-License-Identifier: Apache-2.0

package queryapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/extensiontest"

	"github.com/gpuflight/gpuflight/extension/gpuqueryextension"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

type storage struct {
	component.Component
	backend store.Backend
}

func (s storage) Backend(string) (store.Backend, error) { return s.backend, nil }

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// api is a running extension with the routes of its description.
type api struct {
	address string
	routes  routers.Router
	doc     *openapi3.T
}

func description(t *testing.T) *openapi3.T {
	doc, err := openapi3.NewLoader().LoadFromFile("../../extension/gpuqueryextension/openapi.yaml")
	require.NoError(t, err)
	require.NoError(t, doc.Validate(t.Context()))
	return doc
}

func newAPI(t *testing.T, backend store.Backend) *api {
	f := gpuqueryextension.NewFactory()
	cfg := f.CreateDefaultConfig().(*gpuqueryextension.Config)
	cfg.Endpoint = process.FreePort(t)
	ext, err := f.Create(t.Context(), extensiontest.NewNopSettings(f.Type()), cfg)
	require.NoError(t, err)
	require.NoError(t, ext.Start(t.Context(), host{component.MustNewID("gpu_storage"): storage{backend: backend}}))
	t.Cleanup(func() { assert.NoError(t, ext.Shutdown(context.Background())) })
	doc := description(t)
	doc.Servers = openapi3.Servers{{URL: "http://" + cfg.Endpoint + "/api/v1"}}
	routes, err := gorillamux.NewRouter(doc)
	require.NoError(t, err)
	return &api{address: "http://" + cfg.Endpoint + "/api/v1", routes: routes, doc: doc}
}

// call sends a request and compares the answer with the description.
func (a *api) call(t *testing.T, method, target string) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(t.Context(), method, a.address+target, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if body, err = io.ReadAll(res.Body); err != nil {
		return 0, nil, err
	}
	route, params, err := a.routes.FindRoute(req)
	if err != nil {
		return res.StatusCode, body, fmt.Errorf("%s %s: %w", method, target, err)
	}
	in := &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route, Options: &openapi3filter.Options{
		AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, // the extension has no authenticator
	}}
	err = openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: res.StatusCode, Header: res.Header, Body: io.NopCloser(bytes.NewReader(body)),
	})
	if content := route.Operation.Responses.Status(res.StatusCode); err == nil && content != nil && content.Value.Content["application/json"] != nil {
		var answer any
		if err := json.Unmarshal(body, &answer); err != nil {
			return 0, nil, err
		}
		if more, _ := differences("", content.Value.Content["application/json"].Schema.Value, []any{answer}); more != nil {
			return res.StatusCode, body, fmt.Errorf("the description lacks the members %q", more)
		}
	}
	// What the description allows must not be a bad request.
	if invalid := openapi3filter.ValidateRequest(t.Context(), in); invalid != nil && res.StatusCode == http.StatusOK && err == nil {
		err = fmt.Errorf("the description does not allow an accepted request: %w", invalid)
	}
	return res.StatusCode, body, err
}

func newBackend(t *testing.T) *storetest.Memory {
	m := storetest.NewMemory()
	_, err := m.Write(t.Context(), storetest.Generate(3, storetest.Options{Projects: 1, Sessions: 2, Ops: 150, Hostile: true}))
	require.NoError(t, err)
	text := func(uid byte, index int64, body string) store.Log {
		return store.Log{UID: store.UID{uid}, TimeNs: 1_710_000_000_500_000_000, Event: semconv.EventCUDASASSListing,
			Body: store.Value{Kind: store.KindString, Str: body}, Attrs: store.Attrs{
				{Key: semconv.CodeFunctionName, Value: store.Value{Kind: store.KindString, Str: "f"}},
				{Key: semconv.CUDATextChunkCount, Value: store.Value{Kind: store.KindInt, Int: 2}},
				{Key: semconv.CUDATextChunkIndex, Value: store.Value{Kind: store.KindInt, Int: index}},
			}}
	}
	// The second piece comes first.
	_, err = m.Write(t.Context(), []*store.Batch{{Session: "session-00", Logs: []store.Log{text(1, 1, "EXIT\n"), text(2, 0, "MOV\n")}}})
	require.NoError(t, err)
	return m
}

// known are values that exist in the store, by parameter.
func known(t *testing.T, a *api) map[string][]string {
	values := map[string][]string{"session": {"session-00", "session-01"}, "sessions": {"session-00", "session-00,session-01"}}
	read := func(target string) (answer map[string]any) {
		code, body, err := a.call(t, http.MethodGet, "/sessions/session-00"+target)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code, string(body))
		require.NoError(t, json.Unmarshal(body, &answer))
		return answer
	}
	add := func(target, list, field, parameter string) {
		for _, x := range read(target)[list].([]any) {
			if v := x.(map[string]any)[field]; v != nil && len(values[parameter]) < 200 {
				values[parameter] = append(values[parameter], strings.TrimSuffix(fmt.Sprintf("%.0f", v), "%!f(string="+fmt.Sprint(v)+")"))
				if s, ok := v.(string); ok {
					values[parameter][len(values[parameter])-1] = s
				}
			}
		}
	}
	add("/operations", "operations", "span", "span")
	add("/spans", "spans", "span", "span")
	add("/spans", "spans", "span", "scope")
	add("/operations", "operations", "parent", "parent")
	add("/operations", "operations", "trace", "trace")
	add("/operations", "operations", "shape", "shape")
	add("/operations", "operations", "lane", "lane")
	add("/scopes", "nodes", "path", "path")
	add("/series", "series", "key", "key")
	add("/texts", "texts", "key", "key")
	add("/logs?limit=9999", "logs", "event", "event")
	values["shapes"], values["ids"], values["lanes"] = values["shape"], values["shape"], values["lane"]
	values["a"], values["b"] = values["session"], values["session"]
	values["id"] = slices.Concat(values["path"], values["lane"])
	return values
}

// random returns a target of a path with random parameters, some of them invalid.
func random(r *rand.Rand, path string, item *openapi3.PathItem, op *openapi3.Operation, values map[string][]string) string {
	query := url.Values{}
	for _, ref := range slices.Concat(item.Parameters, op.Parameters) {
		p := ref.Value
		s := p.Schema.Value
		var choices []string
		for _, e := range s.Enum {
			choices = append(choices, fmt.Sprint(e))
		}
		if s.Items != nil {
			for _, e := range s.Items.Value.Enum {
				choices = append(choices, fmt.Sprint(e))
			}
		}
		switch {
		case s.Type.Is("boolean"):
			choices = append(choices, "true", "false")
		case s.Type.Is("integer"):
			choices = append(choices, "0", "4", "100", "1000000", "-1000000", "3600000000000")
		}
		choices = append(choices, values[p.Name]...)
		if r.IntN(25) == 0 || len(choices) == 0 {
			choices = []string{"", "-1", "x", "9223372036854775807", "18446744073709551616", "é\x00%", "'; DROP", "../..", "1,2,x", "\xff"}
		}
		v := choices[r.IntN(len(choices))]
		switch {
		case p.In == "path":
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(v))
		case p.Required || r.IntN(3) == 0:
			query.Set(p.Name, v)
		}
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

func TestAPI_AnswersMatchDescription(t *testing.T) {
	a := newAPI(t, newBackend(t))
	values := known(t, a)
	r := rand.New(rand.NewPCG(1, 2))
	for _, path := range a.doc.Paths.InMatchingOrder() {
		item := a.doc.Paths.Value(path)
		if item.Get == nil || path == "/sessions/{session}/export" {
			continue
		}
		t.Run(item.Get.OperationID, func(t *testing.T) {
			values := maps.Clone(values)
			if item.Get.OperationID == "getCriticalPath" {
				values["span"] = values["scope"] // operations have none
			}
			codes := map[int]int{}
			for range 60 {
				target := random(r, path, item, item.Get, values)
				if strings.Contains(target, "//") || strings.Contains(target, "..") || strings.Contains(target, "/?") || strings.HasSuffix(target, "/") {
					continue // The client or ServeMux changes the path.
				}
				code, body, err := a.call(t, http.MethodGet, target)
				require.NoError(t, err, "%s: %d %.300s", target, code, body)
				require.Contains(t, []int{200, 400, 404}, code, "%s: %s", target, body)
				codes[code]++
			}
			assert.NotZero(t, codes[http.StatusOK], codes)
		})
	}
}

// TestAPI_InvalidParameters sends each parameter that is described with a value that no parameter can
// have, and one that is not described.
func TestAPI_InvalidParameters(t *testing.T) {
	a := newAPI(t, newBackend(t))
	values := known(t, a)
	for _, path := range a.doc.Paths.InMatchingOrder() {
		item := a.doc.Paths.Value(path)
		if item.Get == nil || path == "/login" { // the state is public and has no parameters
			continue
		}
		target := path
		query := url.Values{}
		for _, ref := range slices.Concat(item.Parameters, item.Get.Parameters) {
			switch p := ref.Value; {
			case p.In == "path":
				target = strings.ReplaceAll(target, "{"+p.Name+"}", url.PathEscape(values[p.Name][0]))
			case p.Required:
				query.Set(p.Name, append(values[p.Name], "x")[0])
			}
		}
		switch path { // These need one of two parameters.
		case "/ranks":
			query.Set("sessions", values["session"][0])
		case "/sessions/{session}/analysis/critical":
			query.Set("span", values["scope"][0])
		}
		refused := func(parameter string, query url.Values) {
			t.Run(path+" "+parameter, func(t *testing.T) {
				code, body, err := a.call(t, http.MethodGet, target+"?"+query.Encode())
				require.NoError(t, err)
				assert.Equal(t, http.StatusBadRequest, code, string(body))
				var answer struct{ Error string }
				require.NoError(t, json.Unmarshal(body, &answer))
				assert.Contains(t, answer.Error, parameter)
			})
		}
		for _, ref := range slices.Concat(item.Parameters, item.Get.Parameters) {
			if p := ref.Value; p.In == "query" {
				invalid := maps.Clone(query)
				invalid.Set(p.Name, "\xff")
				refused(p.Name, invalid)
			}
		}
		unknown := maps.Clone(query)
		unknown.Set("unknown", "1")
		refused("unknown", unknown)
	}
}

// TestAPI_ChangesMatchDescription sends the requests that change something, also without what they
// need.
func TestAPI_ChangesMatchDescription(t *testing.T) {
	a := newAPI(t, newBackend(t))
	seen := map[string]bool{}
	for _, tt := range []struct {
		method, target string
		code           int
	}{
		{http.MethodPut, "/sessions/session-00/pin", 204},
		{http.MethodPut, "/sessions/none/pin", 404},
		{http.MethodDelete, "/sessions/session-00/pin", 204},
		{http.MethodPut, "/baselines/good", 400},
		{http.MethodPut, "/baselines/good?session=none", 404},
		{http.MethodPut, "/baselines/good?session=session-00", 204},
		{http.MethodDelete, "/baselines/good", 204},
		{http.MethodDelete, "/baselines/good", 404},
		{http.MethodDelete, "/sessions/session-00", 204},
		{http.MethodDelete, "/sessions/session-00", 404},
		{http.MethodPost, "/demo", 201},
		{http.MethodPost, "/import", 501}, // the store is in memory
		{http.MethodPost, "/sql", 403},    // it is off
		{http.MethodPost, "/login", 404},  // there is no authenticator
		{http.MethodDelete, "/login", 204},
	} {
		code, body, err := a.call(t, tt.method, tt.target)
		require.NoError(t, err, "%s %s: %s", tt.method, tt.target, body)
		assert.Equal(t, tt.code, code, "%s %s: %s", tt.method, tt.target, body)
		if code < 300 {
			assert.Equal(t, code == http.StatusNoContent, len(body) == 0, string(body))
		}
		path, _, _ := strings.Cut(tt.target, "?")
		req, err := http.NewRequestWithContext(t.Context(), tt.method, a.address+path, http.NoBody)
		require.NoError(t, err)
		route, _, err := a.routes.FindRoute(req)
		require.NoError(t, err)
		seen[route.Operation.OperationID] = true
	}
	for path, item := range a.doc.Paths.Map() {
		for method, op := range item.Operations() {
			assert.True(t, method == http.MethodGet || seen[op.OperationID], "%s %s", method, path)
		}
	}
}

func TestAPI_TextOfPieces(t *testing.T) {
	a := newAPI(t, newBackend(t))
	code, body, err := a.call(t, http.MethodGet, "/sessions/session-00/texts")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	var list struct {
		Texts []struct {
			Key, Function string
			Bytes         int64
			Complete      bool
		}
	}
	require.NoError(t, json.Unmarshal(body, &list))
	for _, text := range list.Texts {
		if text.Function != "f" {
			continue
		}
		assert.True(t, text.Complete)
		assert.Equal(t, int64(9), text.Bytes)
		_, body, err = a.call(t, http.MethodGet, "/sessions/session-00/texts/"+text.Key)
		require.NoError(t, err)
		var got struct{ Text string }
		require.NoError(t, json.Unmarshal(body, &got))
		assert.Equal(t, "MOV\nEXIT\n", got.Text)
		return
	}
	assert.Fail(t, "the text is missing")
}
