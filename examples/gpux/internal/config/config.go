// SPDX-License-Identifier: Apache-2.0

// Package config reads gpux.yml. Every key has an effect or is refused with its line.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// FileName is the name of the configuration of a model.
const FileName = "gpux.yml"

// Config is a gpux.yml.
type Config struct {
	Name        string         `yaml:"name"`
	Version     string         `yaml:"version"`
	Description string         `yaml:"description"`
	Model       Model          `yaml:"model"`
	Inputs      Ports          `yaml:"inputs"`
	Outputs     Ports          `yaml:"outputs"`
	Runtime     Runtime        `yaml:"runtime"`
	Serving     Serving        `yaml:"serving"`
	Metadata    map[string]any `yaml:"metadata"`

	Preprocessing Preprocessing `yaml:"preprocessing"`

	// Path is the file, and Dir its folder.
	Path, Dir string `yaml:"-"`
}

// Model says where the model is.
type Model struct {
	// Source is the path of the .onnx file, relative to the folder of gpux.yml.
	Source string `yaml:"source"`
	// Format is "onnx".
	Format string `yaml:"format"`
	// Version of the model, shown to clients. Empty means Config.Version.
	Version string `yaml:"version"`
}

// Port declares an input or an output. It must agree with the model.
type Port struct {
	Name        string  `yaml:"name"`
	Type        string  `yaml:"type"`
	Shape       []int64 `yaml:"shape"` // -1 is a dynamic dimension
	Required    *bool   `yaml:"required"`
	Description string  `yaml:"description"`
	// Labels are the names of the classes of an output, in the order of its last dimension.
	Labels []string `yaml:"labels"`
}

// Ports are written as a list, or as a map from the name to the port or to its type.
type Ports []Port

// Runtime is how the model runs.
type Runtime struct {
	GPU GPU `yaml:"gpu"`
	// Timeout bounds a run. A number is in seconds. The default is 30 s.
	Timeout Duration `yaml:"timeout"`
	// EnableProfiling writes ONNX Runtime's profile of all runs to .gpux when the model is closed.
	EnableProfiling bool `yaml:"enable_profiling"`
	// Threads is the number of threads of one operator on the processor; 0 means all processors.
	Threads int `yaml:"threads"`
}

// GPU is how a device is used.
type GPU struct {
	// Memory bounds the arena of ONNX Runtime. The default is no bound.
	Memory Bytes `yaml:"memory"`
	// Backend is the preferred provider; "auto" takes the order of the platform.
	Backend string `yaml:"backend"`
}

// Serving is how the server answers.
type Serving struct {
	Port int    `yaml:"port"` // default 8080
	Host string `yaml:"host"` // default 127.0.0.1
	// BatchSize is the most rows that are run together. 1, the default, runs each request alone.
	BatchSize int `yaml:"batch_size"`
	// Timeout is the longest that a request may wait and run. The default is 5 s.
	Timeout Duration `yaml:"timeout"`
	// MaxWorkers is the number of runs at a time. The default is 4.
	MaxWorkers int `yaml:"max_workers"`
	// Queue is the number of requests that may wait. The default is 64 for each worker.
	Queue int `yaml:"queue"`
}

// Preprocessing is how texts and images become tensors.
type Preprocessing struct {
	// Tokenizer is the path of the tokenizer.json, relative to the folder of gpux.yml.
	Tokenizer string `yaml:"tokenizer"`
	// MaxLength is the most tokens of a text. Longer texts are cut.
	MaxLength int `yaml:"max_length"`
	// Resize is the width and height that images are scaled to.
	Resize []int `yaml:"resize"`
	// Normalize is "imagenet" for the mean and standard deviation of ImageNet, or "custom" for those of
	// Custom, which are also used without it.
	Normalize string `yaml:"normalize"`
	Custom    Custom `yaml:"custom"`
}

// Custom is what Preprocessing has no other key for.
type Custom struct {
	// Mean and Std are one value, or one for each channel, of pixels from 0 to 1.
	Mean []float64 `yaml:"mean"`
	Std  []float64 `yaml:"std"`
	// Resize is Preprocessing.Resize.
	Resize []int `yaml:"resize"`
	// Crop is the width and height that is cut from the centre after the scaling.
	Crop []int `yaml:"crop"`
}

// Images says whether images are prepared.
func (p Preprocessing) Images() bool {
	return p.Resize != nil || p.Normalize != "" || p.Custom.Mean != nil || p.Custom.Std != nil || p.Custom.Crop != nil
}

// Duration is a number of seconds, or a text such as 500ms.
type Duration time.Duration

// UnmarshalYAML reads a duration above 0 and of at most a day.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if seconds, e := strconv.ParseFloat(n.Value, 64); e == nil {
		v, err = time.Duration(seconds*float64(time.Second)), nil
	}
	if err != nil || v <= 0 || v > 24*time.Hour {
		return at(n, "%q is no duration above 0 and of at most 24h; write seconds, or a text such as 500ms", n.Value)
	}
	*d = Duration(v)
	return nil
}

// Bytes is a number with KB, MB or GB, which are powers of 1,024.
type Bytes int64

// UnmarshalYAML reads a size above 0.
func (b *Bytes) UnmarshalYAML(n *yaml.Node) error {
	text := strings.ToUpper(strings.TrimSpace(n.Value))
	for unit, factor := range map[string]float64{"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30} {
		number, ok := strings.CutSuffix(text, unit)
		if !ok {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(number), 64); err == nil && v > 0 && v*factor < 1<<60 {
			*b = Bytes(v * factor)
			return nil
		}
	}
	return at(n, "%q is no size; write a number with KB, MB or GB, such as 2GB", n.Value)
}

// UnmarshalYAML reads both forms.
func (p *Ports) UnmarshalYAML(n *yaml.Node) error {
	switch n.Kind {
	case yaml.SequenceNode:
		for _, item := range n.Content {
			var port Port
			if err := item.Decode(&port); err != nil {
				return err
			}
			*p = append(*p, port)
		}
	case yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			port := Port{}
			if value := n.Content[i+1]; value.Kind == yaml.ScalarNode {
				port.Type = value.Value
			} else if err := value.Decode(&port); err != nil {
				return err
			}
			port.Name = n.Content[i].Value
			*p = append(*p, port)
		}
	default:
		return at(n, "it must be a list, or a map from names to types")
	}
	return nil
}

func at(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: "+format, append([]any{n.Line}, args...)...)
}

// later are keys of the original that this version does not have, and what to do instead.
var later = map[string]string{
	"runtime.batch_size": "runtime.batch_size is not supported; use serving.batch_size",
	"inputs.max_length":  "max_length of an input is not supported; use preprocessing.max_length",
}

// Read reads a file, or gpux.yml of a folder.
func Read(path string) (*Config, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, FileName)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	c.Path, c.Dir = path, filepath.Dir(path)
	return c, nil
}

// Parse reads the text of a gpux.yml.
func Parse(data []byte) (*Config, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("line 1: the file must be a map that starts with name")
	}
	root := document.Content[0]
	if err := expand(root); err != nil {
		return nil, err
	}
	if err := check(root, reflect.TypeFor[Config](), ""); err != nil {
		return nil, err
	}
	c := &Config{
		Version: "1.0.0", Model: Model{Format: "onnx"},
		Runtime: Runtime{GPU: GPU{Backend: "auto"}, Timeout: Duration(30 * time.Second)},
		Serving: Serving{Port: 8080, Host: "127.0.0.1", BatchSize: 1, Timeout: Duration(5 * time.Second), MaxWorkers: 4},
	}
	if err := root.Decode(c); err != nil {
		var wrong *yaml.TypeError
		if errors.As(err, &wrong) {
			return nil, errors.New(strings.ReplaceAll(wrong.Errors[0], "!!", ""))
		}
		return nil, err
	}
	c.Serving.Queue = cmp.Or(c.Serving.Queue, 64*c.Serving.MaxWorkers)
	return c, c.validate(root)
}

// variable is ${NAME} or ${NAME:-default}.
var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}`)

// expand replaces variables in scalars, so that their content cannot change the structure.
func expand(n *yaml.Node) (err error) {
	if n.Kind == yaml.AliasNode {
		return at(n, "aliases are not supported")
	}
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "${") {
		n.Value = variable.ReplaceAllStringFunc(n.Value, func(text string) string {
			parts := variable.FindStringSubmatch(text)
			value, ok := os.LookupEnv(parts[1])
			if (!ok || value == "") && parts[2] != "" {
				return parts[3]
			}
			if !ok {
				err = at(n, "the environment variable %s is not set; ${%s:-value} gives a default", parts[1], parts[1])
			}
			return value
		})
		if n.Style == 0 {
			n.Tag = "" // a number or bool is one after the replacement, too
		}
	}
	for _, child := range n.Content {
		if e := expand(child); err == nil {
			err = e
		}
	}
	return err
}

// check refuses unknown keys.
func check(n *yaml.Node, t reflect.Type, path string) error {
	switch {
	case t == reflect.TypeFor[Ports]():
		for i, child := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 0 {
				continue // a name
			}
			if err := check(child, reflect.TypeFor[Port](), path); err != nil {
				return err
			}
		}
		return nil
	case t.Kind() != reflect.Struct || n.Kind != yaml.MappingNode:
		return nil
	}
	fields := map[string]reflect.Type{}
	for f := range t.Fields() {
		if key := f.Tag.Get("yaml"); key != "-" {
			fields[key] = f.Type
		}
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		full := strings.TrimPrefix(path+"."+key.Value, ".")
		if seen[key.Value] {
			return at(key, "%s is there twice", full)
		}
		seen[key.Value] = true
		field, ok := fields[key.Value]
		if !ok {
			if text, ok := later[full]; ok {
				return at(key, "%s", text)
			}
			text := fmt.Sprintf("there is no key %s", full)
			if near := nearest(key.Value, fields); near != "" {
				text += fmt.Sprintf("; did you mean %s?", near)
			}
			return at(key, "%s", text)
		}
		if err := check(n.Content[i+1], field, full); err != nil {
			return err
		}
	}
	return nil
}

// nearest returns the key with the fewest changes: at most a third of its length and one.
func nearest(key string, fields map[string]reflect.Type) (best string) {
	least := len(key)/3 + 2
	for candidate := range fields {
		if d := distance(key, candidate); d < least || d == least && best != "" && candidate < best {
			best, least = candidate, d
		}
	}
	return best
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d++
			}
			diagonal = row[j+1]
			row[j+1] = min(d, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// line returns the line of a key.
func line(n *yaml.Node, keys ...string) int {
	for _, key := range keys {
		for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				n = n.Content[i+1]
				break
			}
		}
	}
	return n.Line
}

func (c *Config) validate(root *yaml.Node) error {
	fail := func(keys []string, format string, a ...any) error {
		return fmt.Errorf("line %d: "+format, append([]any{line(root, keys...)}, a...)...)
	}
	switch {
	case c.Name == "":
		return fail(nil, "name is missing")
	case strings.ContainsAny(c.Name, "/\\ \t\n"):
		return fail([]string{"name"}, "name %q must not have slashes or spaces", c.Name)
	case c.Model.Source == "":
		return fail([]string{"model"}, "model.source is missing")
	case c.Model.Format != "onnx":
		return fail([]string{"model", "format"}, "the format %q is not supported; only onnx is", c.Model.Format)
	case len(c.Inputs) == 0:
		return fail([]string{"inputs"}, "inputs is missing or empty")
	case len(c.Outputs) == 0:
		return fail([]string{"outputs"}, "outputs is missing or empty")
	case c.Serving.Port < 0 || c.Serving.Port > 65535:
		return fail([]string{"serving", "port"}, "serving.port must be 0 to 65535")
	case c.Serving.BatchSize < 1 || c.Serving.BatchSize > 4096:
		return fail([]string{"serving", "batch_size"}, "serving.batch_size must be 1 to 4096")
	case c.Serving.MaxWorkers < 1 || c.Serving.MaxWorkers > 1024:
		return fail([]string{"serving", "max_workers"}, "serving.max_workers must be 1 to 1024")
	case c.Serving.Queue < 1 || c.Serving.Queue > 1<<20:
		return fail([]string{"serving", "queue"}, "serving.queue must be 1 to 1048576")
	case c.Runtime.Threads < 0 || c.Runtime.Threads > 1024:
		return fail([]string{"runtime", "threads"}, "runtime.threads must be 0 to 1024")
	}
	if key, err := c.Preprocessing.complete(); err != nil {
		return fail([]string{"preprocessing", key}, "preprocessing.%w", err)
	}
	for _, list := range []struct {
		key   string
		ports Ports
	}{{"inputs", c.Inputs}, {"outputs", c.Outputs}} {
		for i, p := range list.ports {
			if p.Name == "" {
				return fail([]string{list.key}, "entry %d of %s has no name", i+1, list.key)
			}
			if _, err := tensor.ParseDType(p.Type); err != nil {
				return fail([]string{list.key}, "%s of %s: %w", p.Name, list.key, err)
			}
			if list.key == "inputs" && p.Required != nil && !*p.Required {
				return fail([]string{list.key}, "the input %s cannot be optional: a model needs all of its inputs", p.Name)
			}
			if slices.ContainsFunc(list.ports[:i], func(q Port) bool { return q.Name == p.Name }) {
				return fail([]string{list.key}, "%s has %s twice", list.key, p.Name)
			}
		}
	}
	return nil
}

// maxSide bounds the width and height that images are scaled to.
const maxSide = 2048

// complete checks the values, and moves them to where they are used. It returns the key of an error.
func (p *Preprocessing) complete() (string, error) {
	if p.Tokenizer == "" && p.MaxLength != 0 {
		return "max_length", errors.New("max_length needs preprocessing.tokenizer")
	}
	if p.MaxLength < 0 || p.MaxLength > 1<<20 {
		return "max_length", errors.New("max_length must be 1 to 1048576")
	}
	if p.Resize != nil && p.Custom.Resize != nil {
		return "custom", errors.New("custom.resize is preprocessing.resize, which is there too")
	}
	if p.Resize == nil {
		p.Resize, p.Custom.Resize = p.Custom.Resize, nil
	}
	for key, size := range map[string][]int{"resize": p.Resize, "custom.crop": p.Custom.Crop} {
		if size != nil && (len(size) != 2 || min(size[0], size[1]) < 1 || max(size[0], size[1]) > maxSide) {
			return key, fmt.Errorf("%s must be a width and a height of 1 to %d", key, maxSide)
		}
	}
	if r, c := p.Resize, p.Custom.Crop; r != nil && c != nil && (c[0] > r[0] || c[1] > r[1]) {
		return "custom", errors.New("custom.crop is larger than preprocessing.resize")
	}
	switch p.Normalize {
	case "imagenet": // the mean and standard deviation of its training images, as torchvision has them
		if p.Custom.Mean != nil || p.Custom.Std != nil {
			return "custom", errors.New("custom.mean and custom.std contradict preprocessing.normalize")
		}
		p.Custom.Mean, p.Custom.Std = []float64{0.485, 0.456, 0.406}, []float64{0.229, 0.224, 0.225}
	case "custom":
		if p.Custom.Mean == nil || p.Custom.Std == nil {
			return "normalize", errors.New("normalize custom needs custom.mean and custom.std")
		}
	case "":
	default:
		return "normalize", fmt.Errorf("normalize is %q and must be imagenet or custom", p.Normalize)
	}
	for _, v := range p.Custom.Std {
		if v <= 0 {
			return "custom", errors.New("custom.std must be above 0")
		}
	}
	return "", nil
}

// ModelPath returns the path of the .onnx file.
func (c *Config) ModelPath() string {
	return c.resolve(c.Model.Source)
}

// TokenizerPath returns the path of the tokenizer.json, or "" if there is none.
func (c *Config) TokenizerPath() string {
	if c.Preprocessing.Tokenizer == "" {
		return ""
	}
	return c.resolve(c.Preprocessing.Tokenizer)
}

func (c *Config) resolve(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(c.Dir, path)
}

// Agree says in one sentence where the declared inputs and outputs differ from the model's.
func (c *Config) Agree(m *onnx.Model) error {
	if err := agree("input", c.Inputs, m.Inputs, true); err != nil {
		return fmt.Errorf("%s: %w", c.Path, err)
	}
	if err := agree("output", c.Outputs, m.Outputs, false); err != nil {
		return fmt.Errorf("%s: %w", c.Path, err)
	}
	return nil
}

func agree(what string, ports Ports, values []onnx.Value, all bool) error {
	byName, have := map[string]onnx.Value{}, []string{}
	for _, v := range values {
		byName[v.Name] = v
		have = append(have, v.Name)
	}
	for _, p := range ports {
		v, ok := byName[p.Name]
		if !ok {
			return fmt.Errorf("the model has no %s %q; it has %s", what, p.Name, strings.Join(have, ", "))
		}
		if p.Type != v.DType.String() {
			return fmt.Errorf("the %s %q is declared as %s, and in the model it is %s", what, p.Name, p.Type, v.DType)
		}
		if p.Shape != nil && v.Ranked && !compatible(p.Shape, v.Shape()) {
			return fmt.Errorf("the %s %q is declared with the shape %s, and in the model it is %s", what, p.Name, tensor.ShapeText(p.Shape), v.Text())
		}
		delete(byName, p.Name)
	}
	for _, v := range values {
		if _, left := byName[v.Name]; left && all {
			return fmt.Errorf("the %s %q of the model is not declared", what, v.Name)
		}
	}
	return nil
}

func compatible(a, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] >= 0 && b[i] >= 0 && a[i] != b[i] {
			return false
		}
	}
	return true
}
