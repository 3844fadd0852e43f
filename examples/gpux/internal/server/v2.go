// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/preprocess"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// headerLength is the header with the length of the JSON part of a body with binary tensors.
const headerLength = "Inference-Header-Content-Length"

// parameters are those of the protocol that are known here. Others are ignored, as it demands.
type parameters struct {
	BinarySize   *int64 `json:"binary_data_size,omitempty"`
	Binary       *bool  `json:"binary_data,omitempty"`
	BinaryOutput *bool  `json:"binary_data_output,omitempty"`
}

type v2Tensor struct {
	Name       string          `json:"name"`
	Shape      []int64         `json:"shape"`
	DataType   string          `json:"datatype"`
	Parameters *parameters     `json:"parameters,omitempty"`
	Data       json.RawMessage `json:"data,omitempty"`
}

type v2Request struct {
	ID         string      `json:"id"`
	Parameters *parameters `json:"parameters"`
	Inputs     []v2Tensor  `json:"inputs"`
	Outputs    []v2Tensor  `json:"outputs"`
}

type v2Response struct {
	ModelName    string     `json:"model_name"`
	ModelVersion string     `json:"model_version,omitempty"`
	ID           string     `json:"id,omitempty"`
	Outputs      []v2Tensor `json:"outputs"`
}

func (s *Server) routeV2(mux *http.ServeMux) {
	mux.HandleFunc("GET /v2", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]any{"name": "gpux", "version": s.o.Runtime, "extensions": []string{"binary_tensor_data"}})
	})
	mux.HandleFunc("GET /v2/health/live", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, map[string]bool{"live": true}) })
	mux.HandleFunc("GET /v2/health/ready", func(w http.ResponseWriter, _ *http.Request) { s.readiness(w, map[string]any{}) })
	mux.HandleFunc("POST /v2/repository/index", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, s.index()) })
	for _, prefix := range []string{"/v2/models/{model}", "/v2/models/{model}/versions/{version}"} {
		mux.HandleFunc("GET "+prefix, s.named(func(w http.ResponseWriter, _ *http.Request, m *Served) { reply(w, http.StatusOK, s.metadata(m)) }))
		mux.HandleFunc("GET "+prefix+"/ready", s.named(func(w http.ResponseWriter, _ *http.Request, m *Served) {
			s.readiness(w, map[string]any{"name": m.Config.Name})
		}))
		mux.HandleFunc("POST "+prefix+"/infer", s.named(s.inference(s.infer)))
	}
}

// readiness adds whether the server is ready. All of its models are loaded.
func (s *Server) readiness(w http.ResponseWriter, answer map[string]any) {
	code := http.StatusOK
	if !s.ready() {
		code = http.StatusServiceUnavailable
	}
	answer["ready"] = code == http.StatusOK
	reply(w, code, answer)
}

// index lists the models as Triton's extension for model repositories does.
func (s *Server) index() any {
	type entry struct {
		Name    string `json:"name"`
		Version string `json:"version"`
		State   string `json:"state"`
		Reason  string `json:"reason"`
	}
	state := "READY"
	if !s.ready() {
		state = "UNAVAILABLE"
	}
	list := []entry{}
	for _, m := range s.models {
		list = append(list, entry{Name: m.Config.Name, Version: m.version(), State: state})
	}
	return list
}

// named wraps the handler of a route with the name of the model.
func (s *Server) named(f handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		m, err := s.find(r.PathValue("model"), r.PathValue("version"))
		if err != nil {
			fail(w, err)
			return
		}
		f(w, r, m)
	}
}

func (s *Server) metadata(m *Served) any {
	versions := []string{}
	for _, other := range s.models {
		if other.Config.Name == m.Config.Name {
			versions = append(versions, other.version())
		}
	}
	inputs := []v2Tensor{}
	if m.Preprocessor.Texts() {
		inputs = append(inputs, v2Tensor{Name: preprocess.TextInput, DataType: tensor.String.KServe(), Shape: []int64{-1}})
	}
	for _, v := range m.Info.Inputs {
		if !m.Preprocessor.FromText(v.Name) {
			inputs = append(inputs, v2Tensor{Name: v.Name, DataType: v.DType.KServe(), Shape: v.Shape()})
		}
	}
	outputs := []v2Tensor{}
	for _, v := range m.Info.Outputs {
		outputs = append(outputs, v2Tensor{Name: v.Name, DataType: v.DType.KServe(), Shape: v.Shape()})
	}
	return map[string]any{"name": m.Config.Name, "versions": versions, "platform": "onnx_onnxv1", "inputs": inputs, "outputs": outputs}
}

// infer is the route of the protocol.
func (s *Server) infer(w http.ResponseWriter, r *http.Request, m *Served, body []byte) error {
	header, rest := body, []byte(nil)
	if text := r.Header.Get(headerLength); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > len(body) {
			return bad("%s is %q, and the body has %d bytes", headerLength, text, len(body))
		}
		header, rest = body[:n], body[n:]
	}
	var q v2Request
	if err := json.Unmarshal(header, &q); err != nil {
		return bad("the request is no JSON object of the protocol: %v", err)
	}
	values, err := v2Inputs(q.Inputs, rest)
	if err != nil {
		return err
	}
	if err := prepare(r.Context(), m.Preprocessor, values); err != nil {
		return err
	}
	for _, in := range m.Info.Inputs {
		if values[in.Name] == nil {
			return missing(m.Info, m.Preprocessor, in.Name, func(name string) bool { return values[name] != nil })
		}
	}
	outputs, err := m.wanted(q.Outputs)
	if err != nil {
		return err
	}
	results, err := m.scheduler.run(r.Context(), values)
	if err != nil {
		return err
	}
	return m.writeV2(w, q, outputs, results)
}

func v2Inputs(list []v2Tensor, rest []byte) (engine.Tensors, error) {
	values := engine.Tensors{}
	for _, in := range list {
		d, err := tensor.ParseKServe(in.DataType)
		if err != nil {
			return nil, bad("the input '%s': %v", in.Name, err)
		}
		if _, twice := values[in.Name]; twice {
			return nil, bad("the input '%s' is there twice", in.Name)
		}
		n, err := tensor.Elements(in.Shape)
		if err != nil {
			return nil, bad("the input '%s': %v", in.Name, err)
		}
		var t *tensor.Tensor
		if in.Parameters != nil && in.Parameters.BinarySize != nil {
			size := *in.Parameters.BinarySize
			if size < 0 || size > int64(len(rest)) {
				return nil, bad("the input '%s' has %d binary bytes, and the body has %d left", in.Name, size, len(rest))
			}
			if t, err = tensor.FromBinary(d, in.Shape, rest[:size]); err == nil {
				rest = rest[size:]
			}
		} else if t, err = tensor.FromJSON(d, in.Data, nil); err == nil {
			if t.Len() != n {
				return nil, bad("the input '%s' has %d elements, and its shape %v needs %d", in.Name, t.Len(), in.Shape, n)
			}
			t.Shape = in.Shape
		}
		if err != nil {
			return nil, bad("the input '%s': %v", in.Name, err)
		}
		values[in.Name] = t
	}
	if len(rest) > 0 {
		return nil, bad("%d bytes follow the binary tensors", len(rest))
	}
	return values, nil
}

// wanted returns the outputs to answer with: those of the request, or all.
func (m *Served) wanted(list []v2Tensor) ([]v2Tensor, error) {
	names := engine.Names(m.Info.Outputs)
	if len(list) == 0 {
		for _, name := range names {
			list = append(list, v2Tensor{Name: name})
		}
		return list, nil
	}
	for _, out := range list {
		if !slices.Contains(names, out.Name) {
			return nil, bad("the model has no output '%s'", out.Name)
		}
	}
	return list, nil
}

func (m *Served) writeV2(w http.ResponseWriter, q v2Request, outputs []v2Tensor, results engine.Tensors) error {
	answer := v2Response{ModelName: m.Config.Name, ModelVersion: m.version(), ID: q.ID}
	all := q.Parameters != nil && q.Parameters.BinaryOutput != nil && *q.Parameters.BinaryOutput
	var rest []byte
	for _, out := range outputs {
		t := results[out.Name]
		asBinary := all
		if out.Parameters != nil && out.Parameters.Binary != nil {
			asBinary = *out.Parameters.Binary
		}
		o := v2Tensor{Name: out.Name, DataType: t.DType.KServe(), Shape: t.Shape}
		if asBinary {
			before := len(rest)
			rest = t.AppendBinary(rest)
			size := int64(len(rest) - before)
			o.Parameters = &parameters{BinarySize: &size}
		} else {
			flat := *t
			flat.Shape = []int64{int64(t.Len())}
			var err error
			if o.Data, err = flat.MarshalJSON(); err != nil {
				return err
			}
		}
		answer.Outputs = append(answer.Outputs, o)
	}
	if rest == nil {
		reply(w, http.StatusOK, answer)
		return nil
	}
	header, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set(headerLength, strconv.Itoa(len(header)))
	w.Header().Set("Content-Length", strconv.Itoa(len(header)+len(rest)))
	_, _ = w.Write(header) // a client that has gone is not told
	_, _ = w.Write(rest)
	return nil
}
