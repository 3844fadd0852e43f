// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/zap"
)

const (
	// maxWatches leaves most of the usual per-user limit of inotify watches (8192 on older kernels)
	// to other programs.
	maxWatches = 4096
	// wakePause is the delay between wake-ups, so that the kernel can merge the events of a busy
	// writer. A flush per line then does not cause a wake-up per line.
	wakePause = 10 * time.Millisecond
)

// touched is the set of events in a folder since the last scan.
type touched uint8

const (
	touchedData  touched = 1 << iota // a file was written to
	touchedNames                     // something came, went or was renamed
)

// watcher converts inotify's events into a set of changed folders and a coalesced wake-up. A nil
// watcher watches nothing.
type watcher struct {
	events  *fsnotify.Watcher
	wake    chan struct{}
	stop    chan struct{}
	done    sync.WaitGroup
	log     *zap.Logger
	watched map[string]bool // owned by the scanning goroutine
	failed  bool

	mu   sync.Mutex
	dirs map[string]touched
	all  bool // events were lost
}

func newWatcher(log *zap.Logger, wake chan struct{}) (*watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	ww := &watcher{
		events: w, wake: wake, stop: make(chan struct{}), log: log,
		watched: make(map[string]bool), dirs: make(map[string]touched),
	}
	ww.done.Go(ww.run)
	return ww, nil
}

func (w *watcher) run() {
	timer := time.NewTimer(wakePause)
	defer timer.Stop()
	for {
		select {
		case <-w.stop:
			return
		case ev, ok := <-w.events.Events:
			if !ok {
				return
			}
			w.note(ev)
		case err, ok := <-w.events.Errors:
			if !ok {
				return
			}
			// An overflow or a read error: events are missing, so everything may have changed.
			w.log.Debug("file notification", zap.Error(err))
			w.mu.Lock()
			w.all = true
			w.mu.Unlock()
		}
		timer.Reset(wakePause)
		if !w.gather(timer) {
			return
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// gather reads further events within the pause, so that they cause one wake-up. It returns false at
// the end.
func (w *watcher) gather(timer *time.Timer) bool {
	for {
		select {
		case <-w.stop:
			return false
		case <-timer.C:
			return true
		case ev, ok := <-w.events.Events:
			if !ok {
				return false
			}
			w.note(ev)
		}
	}
}

func (w *watcher) note(ev fsnotify.Event) {
	var t touched
	if ev.Has(fsnotify.Write) {
		t |= touchedData
	}
	if ev.Has(fsnotify.Create) || ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename) || ev.Has(fsnotify.Chmod) {
		t |= touchedNames
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.dirs) > 2*maxWatches {
		w.all = true
		return
	}
	w.dirs[filepath.Dir(ev.Name)] |= t
	if t&touchedNames != 0 {
		// The event may be about a watched folder itself.
		w.dirs[ev.Name] |= touchedNames
	}
}

// take returns the changes since the last call.
func (w *watcher) take() (dirs map[string]touched, all bool) {
	if w == nil {
		return nil, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.dirs) > 0 { // an empty one stays the watcher's
		dirs, w.dirs = w.dirs, make(map[string]touched)
	}
	all, w.all = w.all, false
	return dirs, all
}

// add watches a folder if possible. The folder is watched before it is listed, so no change is
// missed.
func (w *watcher) add(path string) {
	if w == nil || w.watched[path] || len(w.watched) >= maxWatches {
		return
	}
	if err := w.events.Add(path); err != nil {
		if !w.failed && !errors.Is(err, fsnotify.ErrClosed) && !errors.Is(err, fs.ErrNotExist) {
			w.failed = true
			w.log.Info("folder cannot be watched and is polled", zap.String("path", path), zap.Error(err))
		}
		return
	}
	w.watched[path] = true
}

func (w *watcher) remove(path string) {
	if w == nil || !w.watched[path] {
		return
	}
	delete(w.watched, path)
	_ = w.events.Remove(path) // the kernel drops the watch with the folder
}

// works reports whether every folder so far is watched.
func (w *watcher) works() bool { return w != nil && !w.failed && len(w.watched) < maxWatches }

func (w *watcher) close() error {
	if w == nil {
		return nil
	}
	close(w.stop)
	err := w.events.Close()
	w.done.Wait()
	return err
}
