// SPDX-License-Identifier: Apache-2.0

// Package preprocess turns texts and images into the tensors of a model, as the section preprocessing
// of gpux.yml says.
//
// Texts are the input "text", which takes the place of input_ids, attention_mask and token_type_ids. An
// image takes the place of the tensor of the model's input for images. It is a PNG or JPEG file, as it
// is or in base64.
package preprocess

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"go.opentelemetry.io/otel"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// TextInput is the name of the input that texts are sent as.
const TextInput = "text"

// maxElements bounds what one request makes: 128 MiB of float32.
const maxElements = 1 << 25

// Preprocessor prepares the inputs of one model. Its methods are safe for concurrent use. A nil one
// takes no texts and no images.
type Preprocessor struct {
	text  *text
	image *picture
	slots chan struct{} // bounds the processors and the memory that it takes
}

// New reads the tokenizer, and finds the inputs of the model that texts and images become.
func New(c *config.Config, m *onnx.Model) (*Preprocessor, error) {
	p := &Preprocessor{slots: make(chan struct{}, runtime.GOMAXPROCS(0))}
	var err error
	if c.Preprocessing.Tokenizer != "" {
		if p.text, err = newText(c, m); err != nil {
			return nil, fmt.Errorf("%s: preprocessing.tokenizer: %w", c.Path, err)
		}
	}
	if c.Preprocessing.Images() {
		if p.image, err = newPicture(c, m); err != nil {
			return nil, fmt.Errorf("%s: preprocessing: %w", c.Path, err)
		}
	}
	return p, nil
}

// Texts says whether texts can be sent.
func (p *Preprocessor) Texts() bool { return p != nil && p.text != nil }

// FromText says whether texts give this input of the model.
func (p *Preprocessor) FromText(name string) bool {
	return p.Texts() && slices.ContainsFunc(p.text.inputs, func(in onnx.Value) bool { return in.Name == name })
}

// ImageInput returns the name of the input that images can be sent as, or "".
func (p *Preprocessor) ImageInput() string {
	if p == nil || p.image == nil {
		return ""
	}
	return p.image.input.Name
}

// Apply replaces texts and images among the values, which are tensors of strings, with the tensors of
// the model. All errors are of the client, except that of ctx.
func (p *Preprocessor) Apply(ctx context.Context, values engine.Tensors) error {
	var texts, images *tensor.Tensor
	if t := values[TextInput]; p.Texts() && t != nil && t.DType == tensor.String {
		texts = t
	}
	if t := values[p.ImageInput()]; p.ImageInput() != "" && t != nil && t.DType == tensor.String {
		images = t
	}
	if texts == nil && images == nil {
		return nil // tensors as the model needs them
	}
	ctx, span := otel.Tracer("github.com/gpuflight/gpuflight/examples/gpux").Start(ctx, "preprocess")
	defer span.End()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if texts != nil {
		tensors, err := p.text.tensors(ctx, texts.Strings)
		if err != nil {
			return fmt.Errorf("the input '%s': %w", TextInput, err)
		}
		delete(values, TextInput)
		for name, t := range tensors {
			if values[name] != nil {
				return fmt.Errorf("the input '%s' is there, and text gives it too", name)
			}
			values[name] = t
		}
	}
	if images != nil {
		t, err := p.image.tensor(ctx, images.Strings)
		if err != nil {
			return fmt.Errorf("the input '%s': %w", p.ImageInput(), err)
		}
		values[p.ImageInput()] = t
	}
	return nil
}

// bounded says whether n rows of so many elements are too many for one request.
func bounded(n, elements int) error {
	if n > maxElements/max(elements, 1) {
		return fmt.Errorf("%d rows of %d elements are more than %d", n, elements, maxElements)
	}
	return nil
}

func input(m *onnx.Model, name string) (onnx.Value, bool) {
	for _, in := range m.Inputs {
		if in.Name == name {
			return in, true
		}
	}
	return onnx.Value{}, false
}

func names(m *onnx.Model) string { return strings.Join(engine.Names(m.Inputs), ", ") }
