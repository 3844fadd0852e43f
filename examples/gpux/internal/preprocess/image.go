// SPDX-License-Identifier: Apache-2.0

package preprocess

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/jpeg"
	_ "image/png"
	"math"
	"strings"

	"golang.org/x/image/draw"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// Limits of an image, which are checked before it is decoded. 25 million pixels take 100 MB.
const (
	maxPixels = 25_000_000
	maxSide   = 16384
)

// picture makes the tensors of images.
type picture struct {
	input        onnx.Value
	channels     int
	last         bool // the channels are the last dimension
	resize, crop []int
	mean, std    []float64 // of each channel
}

func newPicture(c *config.Config, m *onnx.Model) (*picture, error) {
	p := &picture{resize: c.Preprocessing.Resize, crop: c.Preprocessing.Custom.Crop}
	for _, in := range m.Inputs {
		if !in.Ranked || len(in.Dims) != 4 {
			continue
		}
		first, last := in.Dims[1].Size, in.Dims[3].Size
		switch {
		case first == 1 || first == 3:
			p.channels = int(first)
		case last == 1 || last == 3:
			p.channels, p.last = int(last), true
		default:
			continue
		}
		if p.input.Name != "" {
			return nil, fmt.Errorf("the inputs %q and %q can both be an image", p.input.Name, in.Name)
		}
		p.input = in
	}
	if p.input.Name == "" {
		return nil, fmt.Errorf("no input has the shape of an image, with 1 or 3 channels as dimension 2 or 4; the inputs are %s", names(m))
	}
	mean, std := c.Preprocessing.Custom.Mean, c.Preprocessing.Custom.Std
	switch p.input.DType {
	case tensor.Float32:
	case tensor.Uint8:
		if mean != nil || std != nil {
			return nil, fmt.Errorf("the input %q is uint8, which has no mean and std", p.input.Name)
		}
	default:
		return nil, fmt.Errorf("the input %q is %s and must be float32 or uint8", p.input.Name, p.input.DType)
	}
	var err error
	if p.mean, err = perChannel("mean", mean, 0, p.channels); err != nil {
		return nil, err
	}
	p.std, err = perChannel("std", std, 1, p.channels)
	return p, err
}

func perChannel(name string, values []float64, missing float64, channels int) ([]float64, error) {
	if values == nil {
		values = []float64{missing}
	}
	if len(values) == 1 && channels == 3 {
		values = []float64{values[0], values[0], values[0]}
	}
	if len(values) != channels {
		return nil, fmt.Errorf("%s has %d values, and the image has %d channels", name, len(values), channels)
	}
	return values, nil
}

// IsImage says whether data begins as a PNG or JPEG file does. No JSON text does.
func IsImage(data []byte) bool {
	return bytes.HasPrefix(data, []byte("\x89PNG\r\n\x1a\n")) || bytes.HasPrefix(data, []byte("\xff\xd8\xff"))
}

// tensor decodes files, as they are or in base64, to one tensor with a row for each.
func (p *picture) tensor(ctx context.Context, files []string) (*tensor.Tensor, error) {
	if len(files) == 0 {
		return nil, errors.New("there is no image")
	}
	t := &tensor.Tensor{DType: p.input.DType}
	for i, file := range files {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		m, err := p.prepare(file)
		if err != nil {
			return nil, fmt.Errorf("image %d: %w", i+1, err)
		}
		b := m.Bounds()
		w, h, c := int64(b.Dx()), int64(b.Dy()), int64(p.channels)
		shape := []int64{int64(len(files)), c, h, w}
		if p.last {
			shape = []int64{int64(len(files)), h, w, c}
		}
		if i > 0 && (shape[1] != t.Shape[1] || shape[2] != t.Shape[2] || shape[3] != t.Shape[3]) {
			return nil, errors.New("the images differ in size, and preprocessing.resize is not set")
		}
		if t.Shape = shape; i == 0 {
			if err := bounded(len(files), int(w*h*c)); err != nil {
				return nil, err
			}
			t.Data = make([]byte, 0, len(files)*int(w*h*c)*t.DType.Size())
		}
		p.append(t, m)
	}
	return t, nil
}

// prepare decodes, scales and crops.
func (p *picture) prepare(file string) (image.Image, error) {
	data := []byte(file)
	if !IsImage(data) {
		var err error
		if data, err = base64.StdEncoding.DecodeString(strings.TrimSpace(file)); err != nil || !IsImage(data) {
			return nil, errors.New("it is no PNG or JPEG file, nor one in base64")
		}
	}
	header, _, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if w, h := header.Width, header.Height; w > maxSide || h > maxSide || w*h > maxPixels {
		return nil, fmt.Errorf("it has %d x %d pixels; the limits are %d for a side, and %d in all", w, h, maxSide, maxPixels)
	}
	decoded, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	var m image.Image = opaque(decoded, p.channels == 1)
	if p.resize != nil && m.Bounds().Size() != image.Pt(p.resize[0], p.resize[1]) {
		// The triangle filter grows with the scale, as that of Pillow does. 16 bits keep its fractions.
		scaled := image.NewRGBA64(image.Rect(0, 0, p.resize[0], p.resize[1]))
		draw.BiLinear.Scale(scaled, scaled.Bounds(), m, m.Bounds(), draw.Src, nil)
		m = scaled
	}
	if p.crop == nil {
		return m, nil
	}
	size := m.Bounds().Size()
	left, top := (size.X-p.crop[0])/2, (size.Y-p.crop[1])/2
	if size.X < p.crop[0] || size.Y < p.crop[1] {
		return nil, fmt.Errorf("it has %d x %d pixels, and %d x %d are cut from it", size.X, size.Y, p.crop[0], p.crop[1])
	}
	area := image.Rect(left, top, left+p.crop[0], top+p.crop[1])
	return m.(interface {
		SubImage(r image.Rectangle) image.Image
	}).SubImage(area), nil
}

// opaque copies an image without its transparency, which Pillow's convert drops too. With gray, the
// three colours are the brightness that Pillow computes (ITU-R BT.601).
func opaque(m image.Image, gray bool) *image.RGBA {
	b := m.Bounds()
	out := image.NewRGBA(image.Rect(0, 0, b.Dx(), b.Dy()))
	switch m := m.(type) {
	case *image.NRGBA:
		for y := range b.Dy() {
			copy(out.Pix[y*out.Stride:][:4*b.Dx()], m.Pix[y*m.Stride:])
		}
	case *image.NRGBA64:
		for y := range b.Dy() {
			for x := range 4 * b.Dx() {
				out.Pix[y*out.Stride+x] = m.Pix[y*m.Stride+2*x] // the high byte
			}
		}
	case *image.Paletted:
		for y := range b.Dy() {
			for x := range b.Dx() {
				c := color.NRGBAModel.Convert(m.Palette[m.Pix[y*m.Stride+x]]).(color.NRGBA)
				out.SetRGBA(x, y, color.RGBA{c.R, c.G, c.B, 255})
			}
		}
	default:
		draw.Draw(out, out.Bounds(), m, b.Min, draw.Src)
	}
	for i := 0; i < len(out.Pix); i += 4 {
		c := out.Pix[i : i+4 : i+4]
		if c[3] = 255; gray {
			l := uint8((19595*uint32(c[0]) + 38470*uint32(c[1]) + 7471*uint32(c[2]) + 1<<15) >> 16)
			c[0], c[1], c[2] = l, l, l
		}
	}
	return out
}

// append adds the pixels of an image.
func (p *picture) append(t *tensor.Tensor, m image.Image) {
	b := m.Bounds()
	at := m.(image.RGBA64Image).RGBA64At
	put := func(x, y, c int) {
		pixel := at(x, y)
		v := [3]uint16{pixel.R, pixel.G, pixel.B}[c]
		if t.DType == tensor.Uint8 {
			t.Data = append(t.Data, uint8((uint32(v)+128)/257))
			return
		}
		f := float32((float64(v)/0xffff - p.mean[c]) / p.std[c])
		t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(f))
	}
	if p.last {
		for y := b.Min.Y; y < b.Max.Y; y++ {
			for x := b.Min.X; x < b.Max.X; x++ {
				for c := range p.channels {
					put(x, y, c)
				}
			}
		}
		return
	}
	for c := range p.channels {
		for y := b.Min.Y; y < b.Max.Y; y++ {
			for x := b.Min.X; x < b.Max.X; x++ {
				put(x, y, c)
			}
		}
	}
}
