// SPDX-License-Identifier: Apache-2.0

package server

import (
	"maps"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
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
	Inputs      []Port           `json:"inputs"`
	Outputs     []Port           `json:"outputs"`
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

func (s *Server) info() any {
	return struct {
		Info
		Provider any    `json:"provider"`
		Rejected any    `json:"rejected_providers,omitempty"`
		Runtime  string `json:"onnxruntime"`
	}{Describe(s.o.Config, s.o.Info, s.o.Config.ModelPath(), s.o.Size), s.o.Selection.Provider, s.o.Selection.Rejected, s.o.Runtime}
}

// openAPI describes /predict for this model.
func (s *Server) openAPI() any {
	object := func(values []onnx.Value) any {
		properties, required := map[string]any{}, []string{}
		for _, v := range values {
			properties[v.Name] = schema(v)
			required = append(required, v.Name)
		}
		return map[string]any{"type": "object", "properties": properties, "required": required}
	}
	content := func(schema any) any {
		return map[string]any{"application/json": map[string]any{"schema": schema}}
	}
	failure := content(map[string]any{"type": "object", "properties": map[string]any{"detail": map[string]any{"type": "string"}}})
	responses := map[string]any{"200": map[string]any{"description": "the outputs", "content": content(object(s.o.Info.Outputs))}}
	for code, text := range map[string]string{
		"400": "the inputs do not fit the model", "401": "the API key is missing or wrong", "408": "the body did not arrive in time", "413": "the body is too large", "429": "too many requests are waiting",
		"500": "the run failed", "503": "the server is stopping", "504": "the run did not end within the time limit",
	} {
		responses[code] = map[string]any{"description": text, "content": failure}
	}
	return map[string]any{
		"openapi": "3.1.0",
		"info":    map[string]any{"title": s.o.Config.Name, "version": s.version(), "description": s.o.Config.Description},
		"paths": map[string]any{"/predict": map[string]any{"post": map[string]any{
			"summary":     "Run the model.",
			"requestBody": map[string]any{"required": true, "content": content(object(s.o.Info.Inputs))},
			"responses":   responses,
		}}},
	}
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
