// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/preprocess"
)

// described is the gpux.yml of a model that came without one.
type described struct {
	Name    string `yaml:"name"`
	Version string `yaml:"version"`
	Model   struct {
		Source string `yaml:"source"`
	} `yaml:"model"`
	Preprocessing map[string]string `yaml:"preprocessing,omitempty"`
	Inputs        []port            `yaml:"inputs"`
	Outputs       []port            `yaml:"outputs"`
}

type port struct {
	Name   string   `yaml:"name"`
	Type   string   `yaml:"type"`
	Shape  []int64  `yaml:"shape,flow,omitempty"`
	Labels []string `yaml:"labels,flow,omitempty"`
}

// generate describes a model as its file declares it.
func generate(root *os.Root, model string, e Entry, log func(string, ...any)) ([]byte, error) {
	info, err := onnx.ReadFile(filepath.Join(root.Name(), filepath.FromSlash(model)))
	if err != nil {
		return nil, &localError{fmt.Errorf("%s: %w", model, unwrapped(err))}
	}
	d := described{Name: path.Base(e.Name), Version: e.Revision}
	d.Model.Source = model
	for _, v := range info.Inputs {
		d.Inputs = append(d.Inputs, declare(v))
	}
	if file := tokens(root, model, info, log); file != "" {
		d.Preprocessing = map[string]string{"tokenizer": file}
	}
	labels := classes(root, model)
	for _, v := range info.Outputs {
		p := declare(v)
		if n := len(p.Shape); n > 0 && len(labels) > 0 && (p.Shape[n-1] == int64(len(labels)) || v.Name == "logits") {
			p.Labels = labels
		}
		d.Outputs = append(d.Outputs, p)
	}
	text, err := yaml.Marshal(d)
	if err != nil {
		return nil, err
	}
	head := fmt.Sprintf("# gpux wrote this when it pulled %s from %s.\n", e.Reference(), e.Source)
	return append([]byte(head), text...), nil
}

func declare(v onnx.Value) port { return port{Name: v.Name, Type: v.DType.String(), Shape: v.Shape()} }

// tokens returns the tokenizer.json of the model, if gpux can use it for the model. Without it, clients
// send token ids.
func tokens(root *os.Root, model string, info *onnx.Model, log func(string, ...any)) string {
	for _, name := range beside(model, "tokenizer.json") {
		if _, err := root.Stat(filepath.FromSlash(name)); err != nil {
			continue
		}
		c := &config.Config{Dir: root.Name(), Path: config.FileName, Preprocessing: config.Preprocessing{Tokenizer: name}}
		if _, err := preprocess.New(c, info); err != nil {
			log("clients must send tensors, not texts: %v", err)
			continue
		}
		return name
	}
	return ""
}

// beside returns the places of a file that belongs to the model.
func beside(model, name string) []string { return []string{name, path.Join(path.Dir(model), name)} }

// classes returns the names of the classes in the config.json of the model: id2label of Hugging Face.
func classes(root *os.Root, model string) []string {
	for _, name := range beside(model, "config.json") {
		text, err := root.ReadFile(filepath.FromSlash(name))
		var c struct {
			Labels map[string]string `json:"id2label"`
		}
		if err != nil || json.Unmarshal(text, &c) != nil || len(c.Labels) > 1<<16 {
			continue // the file is optional, and its other contents are not needed
		}
		labels := make([]string, len(c.Labels))
		for i := range labels {
			label, ok := c.Labels[strconv.Itoa(i)]
			if !ok {
				return nil
			}
			labels[i] = label
		}
		return labels
	}
	return nil
}
