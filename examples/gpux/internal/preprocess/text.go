// SPDX-License-Identifier: Apache-2.0

package preprocess

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tokenizer"
)

// maxText is the largest text in bytes.
const maxText = 1 << 20

// text makes the tensors of texts.
type text struct {
	tokenizer *tokenizer.Tokenizer
	inputs    []onnx.Value // those of the three inputs that the model has
	length    int          // the tokens of a row, if the model fixes them
}

// Names of the inputs, as Hugging Face's exporters write them.
const (
	idsInput   = "input_ids"
	maskInput  = "attention_mask" // 1 for a token, 0 for padding
	typesInput = "token_type_ids"
)

func newText(c *config.Config, m *onnx.Model) (*text, error) {
	t, err := tokenizer.ReadFile(c.TokenizerPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: name the tokenizer.json of the model", err)
	}
	if err != nil {
		return nil, err
	}
	x := &text{tokenizer: t}
	if n := c.Preprocessing.MaxLength; n > 0 {
		t.MaxLength = n
	}
	if _, ok := input(m, TextInput); ok {
		return nil, fmt.Errorf("the model has an input %q of its own", TextInput)
	}
	for _, name := range []string{idsInput, maskInput, typesInput} {
		in, ok := input(m, name)
		switch {
		case !ok && name == idsInput:
			return nil, fmt.Errorf("the model has no input %q; its inputs are %s", name, names(m))
		case !ok:
			continue
		case in.DType != tensor.Int64 && in.DType != tensor.Int32:
			return nil, fmt.Errorf("the input %q is %s and must be int64 or int32", name, in.DType)
		case in.Ranked && len(in.Dims) != 2:
			return nil, fmt.Errorf("the input %q has the shape %s and must have two dimensions", name, in.Text())
		}
		x.inputs = append(x.inputs, in)
		if in.Ranked && in.Dims[1].Size > 0 {
			x.length = int(in.Dims[1].Size)
		}
	}
	if x.length > 0 {
		if t.MaxLength == 0 || t.MaxLength > x.length {
			t.MaxLength = x.length
		}
		if !t.Padding.Known {
			return nil, fmt.Errorf("the model needs %d tokens, and the file has no padding token", x.length)
		}
	}
	return x, nil
}

// tensors encodes the texts as rows of one length.
func (x *text) tensors(ctx context.Context, texts []string) (engine.Tensors, error) {
	if len(texts) == 0 {
		return nil, errors.New("there is no text")
	}
	if err := bounded(len(texts), x.rowLength(0)); err != nil {
		return nil, err
	}
	rows := make([]tokenizer.Encoding, len(texts))
	longest, shortest := 0, -1
	for i, s := range texts {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if len(s) > maxText {
			return nil, fmt.Errorf("text %d has %d bytes, and the limit is %d", i+1, len(s), maxText)
		}
		var err error
		if rows[i], err = x.tokenizer.Encode(s); err != nil {
			return nil, fmt.Errorf("text %d: %w", i+1, err)
		}
		n := len(rows[i].IDs)
		if longest = max(longest, n); shortest < 0 || n < shortest {
			shortest = n
		}
		if err := bounded(i+1, longest); err != nil {
			return nil, err
		}
	}
	length := x.rowLength(longest)
	if length > shortest && !x.tokenizer.Padding.Known {
		return nil, errors.New("the texts differ in their numbers of tokens, and the tokenizer has no padding token: send one at a time")
	}
	if err := bounded(len(rows), length); err != nil {
		return nil, err
	}
	out := engine.Tensors{}
	for _, in := range x.inputs {
		out[in.Name] = x.column(in, rows, length)
	}
	return out, nil
}

// rowLength returns the tokens of a row if the longest text has this many.
func (x *text) rowLength(longest int) int {
	if x.length > 0 {
		return max(x.length, longest)
	}
	p := x.tokenizer.Padding
	n := max(longest, p.Length)
	return (n + p.Multiple - 1) / p.Multiple * p.Multiple
}

// column makes one of the inputs.
func (x *text) column(in onnx.Value, rows []tokenizer.Encoding, length int) *tensor.Tensor {
	t := &tensor.Tensor{DType: in.DType, Shape: []int64{int64(len(rows)), int64(length)}, Data: make([]byte, 0, len(rows)*length*in.DType.Size())}
	put := func(v int64) {
		if in.DType == tensor.Int32 {
			t.Data = binary.LittleEndian.AppendUint32(t.Data, uint32(v))
		} else {
			t.Data = binary.LittleEndian.AppendUint64(t.Data, uint64(v))
		}
	}
	padding := x.tokenizer.Padding
	fill := map[string]int64{idsInput: padding.ID, typesInput: padding.Type}[in.Name]
	pad := func(n int) {
		for range n {
			put(fill)
		}
	}
	for _, r := range rows {
		missing := length - len(r.IDs)
		if padding.Left {
			pad(missing)
		}
		for i := range r.IDs {
			switch in.Name {
			case idsInput:
				put(r.IDs[i])
			case maskInput:
				put(1)
			default:
				put(r.Types[i])
			}
		}
		if !padding.Left {
			pad(missing)
		}
	}
	return t
}
