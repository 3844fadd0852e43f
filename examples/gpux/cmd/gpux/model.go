// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/ortlib"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/preprocess"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/registry"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/server"
)

// find returns the configuration of a model. A text with a slash, and "." and "..", is the path of a
// folder or of a gpux.yml. Any other text is the name in the gpux.yml of this folder, or of a folder
// below it. What is neither can be in the registry.
func find(model string) (*config.Config, error) {
	if strings.ContainsAny(model, `/\`) || model == "." || model == ".." {
		c, err := config.Read(model)
		if errors.Is(err, fs.ErrNotExist) {
			if _, statErr := os.Stat(model); statErr != nil {
				return pulled(model, fmt.Errorf("%w, and `gpux list` does not have it", err))
			}
		}
		return c, err
	}
	paths := []string{config.FileName}
	below, err := filepath.Glob(filepath.Join("*", config.FileName))
	if err != nil {
		return nil, err
	}
	var seen []string
	for _, path := range append(paths, below...) {
		c, err := config.Read(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		case c.Name == model:
			return c, nil
		}
		seen = append(seen, fmt.Sprintf("%s has %s", path, c.Name))
	}
	err = fmt.Errorf("%s, and `gpux list` does not have it", strings.Join(seen, ", "))
	if len(seen) == 0 {
		err = fmt.Errorf("neither this folder nor the folders in it have a %s, and `gpux list` does not have it", config.FileName)
	}
	if info, statErr := os.Stat(model); statErr == nil && info.IsDir() {
		err = fmt.Errorf("the folder of that name is ./%s", model)
	}
	return pulled(model, fmt.Errorf("there is no model named %s: %w", model, err))
}

// pulled returns the configuration of a model in the registry. If it is not there, the error is
// otherwise.
func pulled(model string, otherwise error) (*config.Config, error) {
	r, err := models()
	if err != nil {
		return nil, err
	}
	e, err := r.Find(model)
	if errors.Is(err, registry.ErrNotFound) {
		return nil, otherwise
	}
	if err != nil {
		return nil, err
	}
	return config.Read(e.Dir)
}

// models opens the registry: the folder models in GPUX_HOME.
func models() (*registry.Registry, error) {
	home, err := ortlib.Home()
	if err != nil {
		return nil, err
	}
	return registry.New(filepath.Join(home, "models"))
}

// loaded is an open model, and what prepares its inputs.
type loaded struct {
	*engine.Model
	preprocessor *preprocess.Preprocessor
}

// inputs reads the inputs of the model from JSON, or from the file of an image.
func (m *loaded) inputs(ctx context.Context, data []byte) (engine.Tensors, error) {
	return server.Inputs(ctx, m.Info, m.preprocessor, data)
}

// load opens the model of a configuration. Provider overrides that of the configuration, and must
// work.
func (a *app) load(c *config.Config, provider string, o engine.Options) (*loaded, error) {
	if _, err := a.open(); err != nil {
		return nil, err
	}
	o.Provider, o.Force = c.Runtime.GPU.Backend, false
	if provider != "" {
		o.Provider, o.Force = provider, true
	}
	o.GPUMemory, o.Threads = int64(c.Runtime.GPU.Memory), c.Runtime.Threads
	if c.Runtime.EnableProfiling {
		if err := os.MkdirAll(filepath.Join(c.Dir, artifacts), 0o755); err != nil {
			return nil, err
		}
		o.Profile = filepath.Join(c.Dir, artifacts, "profile")
	}
	m, err := engine.Load(c.ModelPath(), o)
	if err != nil {
		return nil, err
	}
	if err := c.Agree(m.Info); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	p, err := preprocess.New(c, m.Info)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if text := fallback(c.Runtime.GPU.Backend, m.Selection, gpu()); provider == "" && text != "" {
		a.warn("%s", text)
	}
	return &loaded{m, p}, nil
}

// fallback says that the model runs on another provider than the user can expect.
func fallback(backend string, s engine.Selection, gpu bool) string {
	if len(s.Rejected) == 0 {
		return ""
	}
	if backend != "auto" {
		return fmt.Sprintf("the provider %s does not work: %s; %s is used", backend, s.Rejected[0].Reason, s.Provider.Name)
	}
	for _, r := range s.Rejected {
		if gpu && s.Provider.Name == "cpu" && r.Provider == "cuda" {
			return fmt.Sprintf("this machine has an NVIDIA GPU, but the provider cuda does not work: %s; cpu is used", r.Reason)
		}
	}
	return ""
}

// gpu says whether this machine has an NVIDIA GPU.
func gpu() bool {
	_, err := os.Stat("/dev/nvidiactl")
	return err == nil
}

// artifacts is the folder of what `gpux build` makes.
const artifacts = ".gpux"
