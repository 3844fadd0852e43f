// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuflight/gpuflight/internal/recording/deep/rule"
)

// remembered is how many windows a Report has.
const remembered = 10

// Controller opens and closes windows. Its methods may be called by any goroutine, but Tick and
// what Figures returns by one only; Start and Stop by its owner, Start once.
type Controller struct {
	cfg     Config
	engines Engines
	figures *rule.Figures // nil without rules

	mu    sync.Mutex
	quota quota
	// current is the window that is open or about to be.
	current *Ticket
	lastID  uint64
	// broken says why no window opens any more: it is not known whether an engine is disarmed.
	broken   string
	recent   []Window
	report   Report
	refusals map[*rule.Rule]refusal
	stopping bool
	// undisturbed is from when on figures are as usual, round counts windows for Tick to notice.
	undisturbed      time.Time
	round, seenRound uint64
	published        time.Time

	wake chan *Ticket
	stop chan struct{}
	done chan struct{}
	// hurry is closed when Stop waits no longer: calls are then given no more time.
	hurry    chan struct{}
	started  bool
	stopOnce sync.Once
}

// refusal is what a rule that holds was told, so that it is counted once.
type refusal struct {
	since  time.Time
	status Status
}

// Report is what a controller has done and is about to do.
type Report struct {
	// Open is the window that is open, if one is.
	Open *Window `json:"open,omitempty"`
	// Windows counts windows in which an engine ran, Attempts those in which none did.
	Windows  uint64 `json:"windows"`
	Attempts uint64 `json:"attempts"`
	// Joined counts requests that joined a window, Skipped times of the schedule that passed
	// meanwhile.
	Joined  uint64 `json:"joined"`
	Skipped uint64 `json:"skipped"`
	// Refused counts requests that were refused; a rule that holds and is refused for one reason
	// counts once.
	Refused map[Status]uint64 `json:"refused,omitempty"`
	// Recent are the last windows and attempts, the latest at the end.
	Recent []Window `json:"recent,omitempty"`
	// Next is the schedule's next time, zero if there is none. Waits says that it has passed and
	// the program does not use the device yet.
	Next  time.Time `json:"next,omitzero"`
	Waits bool      `json:"waits,omitempty"`
	// Rules are as of a second ago or less.
	Rules []rule.State `json:"rules,omitempty"`
	// Broken says why no window opens any more.
	Broken string `json:"broken,omitempty"`
}

// New returns a controller that has not begun. It errs if the configuration contradicts itself.
func New(cfg Config, engines Engines) (*Controller, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	c := &Controller{
		cfg: cfg, engines: engines,
		refusals: map[*rule.Rule]refusal{},
		wake:     make(chan *Ticket, 1), stop: make(chan struct{}), done: make(chan struct{}), hurry: make(chan struct{}),
	}
	c.quota.cfg = &c.cfg
	c.report.Refused = map[Status]uint64{}
	if len(cfg.When) > 0 {
		if c.figures, err = rule.New(cfg.When); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Start begins: blackout and schedule count from now.
func (c *Controller) Start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started || c.stopping {
		return
	}
	c.started = true
	now := time.Now()
	c.quota.started = now
	if c.cfg.After > 0 {
		c.report.Next = now.Add(c.cfg.After)
	}
	signals, unwatch := watchSignal(c.cfg.Signal)
	go c.run(now, signals, unwatch)
}

// Figures returns what the rules look at, nil if there are none.
func (c *Controller) Figures() *rule.Figures { return c.figures }

// Tick brings the figures up to date and opens a window if a rule is met. Call it every 200 ms or
// so, with the time, from the goroutine that the figures belong to. It does not wait.
func (c *Controller) Tick(now time.Time) {
	if c.figures == nil {
		return
	}
	c.mu.Lock()
	disturbed := c.current != nil || c.round != c.seenRound || now.Before(c.undisturbed)
	c.seenRound = c.round
	c.mu.Unlock()
	c.figures.Tick(now, disturbed, func(f *rule.Firing) bool { return c.fire(now, f) })
	if now.Sub(c.published) >= time.Second {
		c.published = now
		states := c.figures.States()
		c.mu.Lock()
		c.report.Rules = states
		c.mu.Unlock()
	}
}

func (c *Controller) fire(now time.Time, f *rule.Firing) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.ask(Request{Cause: CauseRule, Why: f.String(), Firing: f})
	if err == nil {
		delete(c.refusals, f.Rule)
		return true
	}
	told := refusal{since: now.Add(-f.Held), status: err.Outcome.Status}
	if c.refusals[f.Rule] != told {
		c.refusals[f.Rule] = told
		c.report.Refused[told.status]++
	}
	return false
}

// RequestWindow requests a window, which opens immediately or not at all. The error is an *Error;
// with none the ticket says what comes of it.
func (c *Controller) RequestWindow(r Request) (*Ticket, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, err := c.ask(r)
	if err != nil {
		c.report.Refused[err.Outcome.Status]++
		return nil, err
	}
	return t, nil
}

// ask is RequestWindow under the lock; it counts no refusal.
func (c *Controller) ask(r Request) (*Ticket, *Error) {
	if r.Engine == "" {
		r.Engine = c.cfg.Engine
	}
	if r.For == 0 {
		r.For = c.cfg.For
	}
	if _, err := ParseEngine(string(r.Engine)); err != nil {
		return nil, NewError(StatusBadRequest, err.Error())
	}
	if r.For < MinFor || r.For > MaxFor {
		return nil, NewError(StatusBadRequest, fmt.Sprintf("a window of %v; it must be %v to %v long", r.For, MinFor, MaxFor))
	}
	if c.stopping {
		return nil, NewError(StatusAtExit, "")
	}
	without := ""
	now := time.Now()
	if r.Engine == Both && c.quota.sass {
		// PC sampling gets all of the time. A caller is notified; the schedule and rules would
		// repeat it forever.
		r.Engine = PC
		if r.Cause == CauseCall || r.Cause == CauseSocket {
			without = notWith(SASS, outcome(StatusSASSUsed, "").Text)
		}
	}
	if t := c.current; t != nil {
		if t.window.Cause == r.Cause && t.window.Engine == r.Engine {
			c.report.Joined++
			return t, nil
		}
		return nil, NewError(StatusBusy, fmt.Sprintf("%s, for %v since %s", t.window.Cause, t.window.For, t.window.Start.Format(time.TimeOnly)))
	}
	if c.broken != "" {
		return nil, NewError(StatusBroken, c.broken)
	}
	if err := c.quota.check(now, r); err != nil {
		return nil, err
	}
	c.lastID++
	t := &Ticket{c: c, done: make(chan struct{}), end: make(chan struct{}), without: without, window: Window{
		ID: c.lastID, Engine: r.Engine, Cause: r.Cause, Why: shorten(r.Why), Firing: r.Firing, For: r.For, Start: now,
	}}
	c.current = t
	c.round++
	c.wake <- t // there is room: it is taken before current can be another
	return t, nil
}

// maxWhy bounds the text of a request, in bytes. Rules are shorter.
const maxWhy = 2 * rule.MaxText

func shorten(s string) string {
	if len(s) > maxWhy {
		s = s[:maxWhy]
	}
	return strings.ToValidUTF8(s, "") // a character may have been cut in two
}

// Close ends the window that is open, as asked for, and says whether there was one. It does not
// wait.
func (c *Controller) Close() bool {
	c.mu.Lock()
	t := c.current
	c.mu.Unlock()
	if t == nil {
		return false
	}
	t.Close()
	return true
}

// Report returns what the controller has done and is about to do.
func (c *Controller) Report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.report
	r.Refused = maps.Clone(r.Refused)
	r.Broken = c.broken
	r.Recent = slices.Clone(c.recent)
	if c.current != nil {
		w := c.current.window
		r.Open = &w
	}
	return r
}

// Stop closes the window that is open, by exit, and opens none from now on. It returns when all is
// restored, or with ctx's error when that ends first: then what an engine has not finished is left
// to it. A second call waits likewise.
func (c *Controller) Stop(ctx context.Context) error {
	c.mu.Lock()
	if !c.stopping {
		c.stopping = true
		close(c.stop)
		if !c.started {
			close(c.done)
		}
	}
	c.mu.Unlock()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		c.stopOnce.Do(func() { close(c.hurry) })
		return fmt.Errorf("end a deep window: %w", context.Cause(ctx))
	}
}

// run opens windows until Stop.
func (c *Controller) run(start time.Time, signals <-chan os.Signal, unwatch func()) {
	defer close(c.done)
	defer unwatch()
	var due <-chan time.Time
	timer := time.NewTimer(c.cfg.After)
	defer timer.Stop()
	if c.cfg.After > 0 {
		due = timer.C
	}
	next := start.Add(c.cfg.After)
	for {
		// Once it is over nothing else counts but a request that was accepted before: it is told
		// so.
		select {
		case <-c.stop:
			select {
			case t := <-c.wake:
				c.runGuarded(t)
			default:
			}
			return
		default:
		}
		select {
		case <-c.stop:
		case t := <-c.wake:
			c.runGuarded(t)
		case <-signals:
			_, _ = c.RequestWindow(Request{Cause: CauseSignal, Why: "SIG" + c.cfg.Signal}) // a refusal is counted
		case <-due:
			if !c.ready() {
				timer.Reset(lookAgain)
			} else if next = c.scheduled(next); next.IsZero() {
				due = nil
			} else {
				timer.Reset(time.Until(next))
			}
		}
	}
}

// runGuarded runs one window. A panic here would be a mistake of this package; it ends the windows
// and not the program.
func (c *Controller) runGuarded(t *Ticket) {
	if err := guarded(func() error {
		c.runWindow(t)
		return nil
	}); err != nil {
		c.cfg.Logger.Error("deep windows are off", "error", err)
		c.mu.Lock()
		c.broken = err.Error()
		t.window.Outcome = outcome(StatusFailed, "internal error")
		c.current = nil
		c.mu.Unlock()
		t.finish()
	}
}

// ready says whether a window of the schedule that is due has anything to look into.
func (c *Controller) ready() bool {
	ready := true // where the engines cannot say, the window does
	if err := guarded(func() error {
		ready = c.engines.Ready()
		return nil
	}); err != nil {
		c.cfg.Logger.Error("a deep engine cannot say whether it is ready", "error", err)
	}
	c.mu.Lock()
	c.report.Waits = !ready
	c.mu.Unlock()
	return ready
}

// scheduled asks for the window that is due and returns when the next is, zero for never. Times
// stay on the grid of the first; those that have passed are skipped.
func (c *Controller) scheduled(due time.Time) (next time.Time) {
	now := time.Now()
	skipped := uint64(0)
	if every := c.cfg.Every; every > 0 {
		if late := now.Sub(due); late >= every {
			skipped = uint64(late / every)
			due = due.Add(late.Truncate(every))
		}
		next = due.Add(every)
	}
	why := fmt.Sprintf("%v after the start", c.cfg.After)
	if c.cfg.Every > 0 {
		why += fmt.Sprintf(", every %v", c.cfg.Every)
	}
	_, _ = c.RequestWindow(Request{Cause: CauseSchedule, Why: why}) // a refusal is counted
	c.mu.Lock()
	c.report.Next = next
	c.report.Skipped += skipped
	c.mu.Unlock()
	return next
}

// Ticket stands for a window that was accepted. Its methods may be called by any goroutine.
type Ticket struct {
	c *Controller
	// window is under the controller's lock until done is closed.
	window Window
	// without is what is added where something was collected: what the window was asked for and
	// went without.
	without string
	done    chan struct{}
	end     chan struct{}
	once    sync.Once
}

// ID returns the window's id.
func (t *Ticket) ID() uint64 { return t.window.ID }

// Close ends the window early, for all who joined it. It does not wait.
func (t *Ticket) Close() { t.once.Do(func() { close(t.end) }) }

// Done is closed when the window has closed and Config.Closed has returned.
func (t *Ticket) Done() <-chan struct{} { return t.done }

// Window returns the window as it is.
func (t *Ticket) Window() Window {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return t.window
}

// Wait waits until the window has closed and returns it. Its error is ctx's; whether something was
// collected is in the window.
func (t *Ticket) Wait(ctx context.Context) (Window, error) {
	select {
	case <-t.done:
		return t.Window(), nil
	case <-ctx.Done():
		return t.Window(), context.Cause(ctx)
	}
}

func (t *Ticket) finish() { close(t.done) }

// panicError is the panic of a call of Engines.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// guarded runs f and returns its panic as an error.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, stack: debug.Stack()}
		}
	}()
	return f()
}
