// SPDX-License-Identifier: Apache-2.0

package preprocess

import (
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// imageCase is a case of golden.py.
type imageCase struct {
	File         string        `json:"file"` // base64
	Resize, Crop []int         `json:"-"`
	Channels     int           `json:"channels"`
	Mean, Std    []float64     `json:"-"`
	HWC          [][][]float64 `json:"hwc"`
}

func (c *imageCase) UnmarshalJSON(data []byte) error {
	type plain imageCase
	more := struct {
		*plain
		Resize, Crop []int
		Mean, Std    []float64
	}{plain: (*plain)(c)}
	err := json.Unmarshal(data, &more)
	c.Resize, c.Crop, c.Mean, c.Std = more.Resize, more.Crop, more.Mean, more.Std
	return err
}

func readImages(t testing.TB) (cases map[string]imageCase) {
	t.Helper()
	f, err := os.Open("testdata/images.json.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	require.NoError(t, json.NewDecoder(z).Decode(&cases))
	return cases
}

func value(name string, d tensor.DType, dims ...int64) onnx.Value {
	v := onnx.Value{Name: name, Kind: "tensor", DType: d, Ranked: true}
	for _, size := range dims {
		v.Dims = append(v.Dims, onnx.Dim{Size: size})
	}
	return v
}

func imageModel(d tensor.DType, dims ...int64) *onnx.Model {
	return &onnx.Model{Inputs: []onnx.Value{value("image", d, dims...)}}
}

// The values are those of Pillow and numpy within one level of 255 for PNG, because Pillow rounds to
// levels after each direction. The decoders of JPEG differ by another level. For colours of half the
// resolution they differ by up to 12, because Pillow's interpolates them.
func TestImage_Golden(t *testing.T) {
	cases := readImages(t)
	require.Len(t, cases, 17)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			most, mean := 1.02/255, 0.3/255 // the golden data has 4 digits
			if strings.HasPrefix(name, "jpeg") {
				most = 2.0 / 255
			}
			if name == "jpeg, half colours" || name == "jpeg, progressive" {
				most, mean = 12.0/255, 1.0/255
			}
			cfg := &config.Config{Preprocessing: config.Preprocessing{Resize: c.Resize, Custom: config.Custom{Crop: c.Crop, Mean: c.Mean, Std: c.Std}}}
			for _, last := range []bool{false, true} {
				dims := []int64{-1, int64(c.Channels), -1, -1}
				if last {
					dims = []int64{-1, -1, -1, int64(c.Channels)}
				}
				p, err := newPicture(cfg, imageModel(tensor.Float32, dims...))
				require.NoError(t, err)
				got, err := p.tensor(t.Context(), []string{c.File})
				require.NoError(t, err)
				h, w := len(c.HWC), len(c.HWC[0])
				want := []int64{1, int64(c.Channels), int64(h), int64(w)}
				if last {
					want = []int64{1, int64(h), int64(w), int64(c.Channels)}
				}
				require.Equal(t, want, got.Shape)
				worst, sum := 0.0, 0.0
				for y := range h {
					for x := range w {
						for ch := range c.Channels {
							i := (ch*h+y)*w + x
							if last {
								i = (y*w+x)*c.Channels + ch
							}
							v := math.Float32frombits(binary.LittleEndian.Uint32(got.Data[4*i:]))
							d := math.Abs(float64(v)-c.HWC[y][x][ch]) * p.std[ch] // in parts of 255 again
							worst, sum = max(worst, d), sum+d
						}
					}
				}
				average := sum / float64(h*w*c.Channels)
				t.Logf("levels of 255: at most %.2f, on average %.2f", worst*255, average*255)
				assert.LessOrEqual(t, worst, most)
				assert.LessOrEqual(t, average, mean)
			}
		})
	}
}
