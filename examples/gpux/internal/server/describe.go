// SPDX-License-Identifier: Apache-2.0

package server

import (
	"maps"
	"slices"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/preprocess"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// Info describes a model and where it runs, as /info and `gpux inspect` do.
type Info struct {
	Name        string           `json:"name"`
	Version     string           `json:"version"`
	Description string           `json:"description,omitempty"`
	Format      string           `json:"format"`
	Path        string           `json:"path"`
	SizeBytes   int64            `json:"size_bytes"`
	Producer    string           `json:"producer,omitempty"`
	Opsets      map[string]int64 `json:"opsets"`
	Operators   map[string]int   `json:"operators"`
	// Accepts says what clients can send besides tensors: "text", "image".
	Accepts []string `json:"accepts,omitempty"`
	Inputs  []Port   `json:"inputs"`
	Outputs []Port   `json:"outputs"`
	// Metadata is that of the model and of gpux.yml, which takes precedence.
	Metadata map[string]any `json:"metadata"`
}

// Port is an input or output. A dimension is a number, or a text if it is unknown.
type Port struct {
	Name        string   `json:"name"`
	Type        string   `json:"type"`
	Shape       []any    `json:"shape"`
	Description string   `json:"description,omitempty"`
	Labels      []string `json:"labels,omitempty"`
}

// Describe joins what the configuration and the model say. The configuration may be nil.
func Describe(c *config.Config, m *onnx.Model, path string, size int64) Info {
	i := Info{Format: "onnx", Path: path, SizeBytes: size, Producer: m.Producer, Opsets: maps.Clone(m.Opsets), Operators: m.Operators}
	if m.ProducerVersion != "" {
		i.Producer += " " + m.ProducerVersion
	}
	if version, ok := i.Opsets[""]; ok {
		delete(i.Opsets, "")
		i.Opsets["ai.onnx"] = version
	}
	i.Metadata = map[string]any{}
	for key, value := range m.Metadata {
		i.Metadata[key] = value
	}
	var inputs, outputs config.Ports
	if c != nil {
		maps.Copy(i.Metadata, c.Metadata)
		i.Name, i.Version, i.Description, inputs, outputs = c.Name, c.Version, c.Description, c.Inputs, c.Outputs
		if c.Preprocessing.Tokenizer != "" {
			i.Accepts = append(i.Accepts, "text")
		}
		if c.Preprocessing.Images() {
			i.Accepts = append(i.Accepts, "image")
		}
	} else {
		i.Name = m.Graph
	}
	i.Inputs, i.Outputs = ports(m.Inputs, inputs), ports(m.Outputs, outputs)
	return i
}

func ports(values []onnx.Value, declared config.Ports) []Port {
	list := make([]Port, len(values))
	for i, v := range values {
		p := Port{Name: v.Name, Type: v.DType.String(), Shape: []any{}}
		if v.Kind != "tensor" {
			p.Type = v.Kind
		}
		for _, d := range v.Dims {
			switch {
			case d.Size >= 0:
				p.Shape = append(p.Shape, d.Size)
			case d.Name != "":
				p.Shape = append(p.Shape, d.Name)
			default:
				p.Shape = append(p.Shape, "?")
			}
		}
		for _, d := range declared {
			if d.Name == v.Name {
				p.Description, p.Labels = d.Description, d.Labels
			}
		}
		list[i] = p
	}
	return list
}

func (s *Server) info(m *Served) any {
	return struct {
		Info
		Provider any    `json:"provider"`
		Rejected any    `json:"rejected_providers,omitempty"`
		Runtime  string `json:"onnxruntime"`
	}{Describe(m.Config, m.Info, m.Config.ModelPath(), m.Size), m.Selection.Provider, m.Selection.Rejected, s.o.Runtime}
}

// object is a node of the OpenAPI document.
type object = map[string]any

// openAPI describes the routes, and the inputs and outputs of the models.
func (s *Server) openAPI() any {
	content := func(schema any) object { return object{"application/json": object{"schema": schema}} }
	plain := func(text string) object { return object{"description": text, "content": content(object{})} }
	failure := content(object{"type": "object", "properties": object{"detail": object{"type": "string"}}})
	responses := func(ok object) object {
		all := object{"200": ok}
		for code, text := range map[string]string{
			"400": "the inputs do not fit the model", "401": "the API key is missing or wrong", "404": "there is no such model", "408": "the body did not arrive in time",
			"413": "the body is too large", "429": "too many requests are waiting", "500": "the run failed", "503": "the server is stopping, or has too many bodies in memory", "504": "the run did not end within the time limit",
		} {
			all[code] = object{"description": text, "content": failure}
		}
		return all
	}
	get := func(summary string, parameters []any, failures ...string) object {
		answers := object{"200": plain("the answer")}
		for _, code := range failures {
			answers[code] = object{"description": "there is no such model, or it is not ready", "content": failure}
		}
		return object{"get": object{"summary": summary, "parameters": append([]any{}, parameters...), "responses": answers}}
	}
	names, versions, inputs, outputs, images := []any{}, []any{}, []any{}, []any{}, false
	for _, m := range s.models {
		if !slices.Contains(names, any(m.Config.Name)) {
			names = append(names, m.Config.Name)
		}
		if !slices.Contains(versions, any(m.version())) {
			versions = append(versions, m.version())
		}
		inputs, outputs = append(inputs, m.inputSchema()), append(outputs, objectOf(m, engine.Names(m.Info.Outputs), schemas(m.Info.Outputs)))
		images = images || m.Preprocessor.ImageInput() != ""
	}
	parameter := func(name, in string, values []any) any {
		return object{"name": name, "in": in, "required": in == "path", "schema": object{"type": "string", "enum": values}}
	}
	inQuery := []any{parameter("model", "query", names), parameter("version", "query", versions)}
	inPath := []any{parameter("model", "path", names)}
	withVersion := []any{parameter("model", "path", names), parameter("version", "path", versions)}
	predict := content(object{"anyOf": inputs})
	if images {
		for _, kind := range []string{"image/png", "image/jpeg"} {
			predict[kind] = object{"schema": object{"type": "string", "format": "binary"}}
		}
	}
	infer := func(parameters []any) object {
		tensors := func(required ...string) object {
			return object{"type": "array", "items": object{"type": "object", "required": required, "properties": object{
				"name": object{"type": "string"}, "shape": object{"type": "array", "items": object{"type": "integer"}},
				"datatype": object{"type": "string"}, "data": object{"type": "array"}, "parameters": object{"type": "object"},
			}}}
		}
		request := object{"type": "object", "required": []string{"inputs"}, "properties": object{
			"id": object{"type": "string"}, "inputs": tensors("name", "shape", "datatype"), "outputs": tensors("name"), "parameters": object{"type": "object"},
		}}
		answer := object{"type": "object", "properties": object{
			"model_name": object{"type": "string"}, "model_version": object{"type": "string"}, "id": object{"type": "string"}, "outputs": tensors("name", "shape", "datatype"),
		}}
		return object{"post": object{
			"summary": "Run a model, in version 2 of KServe's protocol.", "parameters": parameters,
			"requestBody": object{"required": true, "content": content(request)},
			"responses":   responses(object{"description": "the outputs", "content": content(answer)}),
		}}
	}
	first := s.models[0]
	info := object{"title": "gpux", "version": first.version()}
	if len(s.models) == 1 {
		info["title"], info["description"] = first.Config.Name, first.Config.Description
	}
	document := object{
		"openapi": "3.1.0", "info": info,
		"paths": object{
			"/predict": object{"post": object{
				"summary": "Run a model.", "parameters": inQuery,
				"requestBody": object{"required": true, "content": predict},
				"responses":   responses(object{"description": "the outputs", "content": content(object{"anyOf": outputs})}),
			}},
			"/health":          get("Whether the server answers requests.", nil, "503"),
			"/info":            get("What a model is.", inQuery, "404"),
			"/metrics":         get("Metrics, as text of Prometheus if the request accepts it.", inQuery, "404"),
			"/v2":              get("The server and the extensions of the protocol that it has.", nil),
			"/v2/health/live":  get("Whether the server runs.", nil),
			"/v2/health/ready": get("Whether the server answers requests.", nil, "503"),
			"/v2/repository/index": object{"post": object{
				"summary": "The models and their versions.", "responses": object{"200": plain("the list")},
			}},
		},
	}
	paths := document["paths"].(object)
	for path, parameters := range map[string][]any{"/v2/models/{model}": inPath, "/v2/models/{model}/versions/{version}": withVersion} {
		paths[path] = get("The inputs and outputs of a model.", parameters, "404")
		paths[path+"/ready"] = get("Whether a model answers requests.", parameters, "404", "503")
		paths[path+"/infer"] = infer(parameters)
	}
	if len(s.o.Keys) > 0 {
		document["components"] = object{"securitySchemes": object{"key": object{"type": "http", "scheme": "bearer"}}}
		for _, path := range paths {
			if post, ok := path.(object)["post"].(object); ok && post["requestBody"] != nil {
				post["security"] = []any{object{"key": []any{}}}
			}
		}
	}
	return document
}

// schemas are those of inputs or outputs, in their order.
func schemas(values []onnx.Value) (list []any) {
	for _, v := range values {
		list = append(list, schema(v))
	}
	return list
}

// objectOf is an object with these properties.
func objectOf(m *Served, names []string, schemas []any) any {
	properties := object{}
	for i, name := range names {
		properties[name] = schemas[i]
	}
	return object{"title": m.Config.Name + " " + m.version(), "type": "object", "properties": properties, "required": names}
}

// inputSchema has the texts and images that are accepted instead of tensors.
func (m *Served) inputSchema() any {
	one := object{"type": "string"}
	texts := object{"anyOf": []any{one, object{"type": "array", "items": one}}}
	var names []string
	var all []any
	if m.Preprocessor.Texts() {
		names, all = append(names, preprocess.TextInput), append(all, texts)
	}
	for _, v := range m.Info.Inputs {
		s := schema(v)
		if v.Name == m.Preprocessor.ImageInput() {
			s = object{"description": "a PNG or JPEG file in base64, or its tensor", "anyOf": []any{one, object{"type": "array", "items": one}, s}}
		}
		if !m.Preprocessor.FromText(v.Name) {
			names, all = append(names, v.Name), append(all, s)
		}
	}
	return objectOf(m, names, all)
}

// schema is nested arrays to the depth of the shape.
func schema(v onnx.Value) any {
	element := map[string]any{"type": "number"}
	switch v.DType {
	case tensor.String:
		element["type"] = "string"
	case tensor.Bool:
		element["type"] = "boolean"
	case tensor.Float32, tensor.Float64, tensor.Float16, tensor.BFloat16:
	default:
		element["type"] = "integer"
	}
	if !v.Ranked {
		return map[string]any{"description": "nested arrays of " + v.DType.String()}
	}
	node := element
	for i := len(v.Dims) - 1; i >= 0; i-- {
		node = map[string]any{"type": "array", "items": node}
		if size := v.Dims[i].Size; size >= 0 {
			node["minItems"], node["maxItems"] = size, size
		}
	}
	return node
}
