// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/recording/deep/rule"
	"github.com/gpuflight/gpuflight/internal/recording/settings"
)

// Defaults of Config.
const (
	DefaultFor      = 2 * time.Second
	DefaultBlackout = 2 * time.Second
	DefaultCoolDown = 10 * time.Second
	DefaultPerHour  = 60
	DefaultShare    = 0.05
	// DefaultPatience is above the ten seconds that package cupti allows itself: what it gives up
	// in order is not taken for broken here.
	DefaultPatience   = 15 * time.Second
	DefaultDrainEvery = 250 * time.Millisecond
)

const (
	// MinFor and MaxFor bound a window: shorter ones see next to nothing, longer ones are no
	// windows.
	MinFor = 10 * time.Millisecond
	MaxFor = time.Minute
	// maxPerHour bounds what is remembered of the last hour.
	maxPerHour = 10_000
	// lookAgain is how often a window of the schedule that is due looks for something to look into.
	lookAgain = 250 * time.Millisecond
	// settle is how long after a window its traces may still come in: figures are not used until
	// then.
	settle = time.Second
)

// Config says which windows there may be. Its zero value allows requests by the program only,
// within the default limits.
type Config struct {
	// Enabled says that windows may be asked for at all. Who makes a Controller looks at it; New
	// does not.
	Enabled bool
	// Engine and For are those of requests that do not say, and of the schedule and rules; "" is
	// PC, 0 DefaultFor.
	Engine Engine
	For    time.Duration

	// After and Every are the schedule: a window that long after the start, and again every so
	// often. Of 0 both there is none; with Every alone the first comes after it, with After alone
	// there is one. Before the program uses the device there is none: what is due then comes when
	// it does.
	After, Every time.Duration
	// When are the rules.
	When []rule.Rule
	// Signal is the signal that asks for a window, USR1 or USR2, or "" for none.
	Signal string

	// Max bounds the windows in all in which an engine ran, 0 for no bound.
	Max int
	// Blackout is how long after the start there is no window; 0 is DefaultBlackout, or After if
	// that is less; below 0 is none.
	Blackout time.Duration
	// CoolDown is the least time from the end of a window, or of an attempt, to the next. 0 is
	// DefaultCoolDown, or the time that the schedule leaves if that is less. Below 0 is none.
	CoolDown time.Duration
	// PerHour bounds windows and attempts in any hour, Share the part of any hour that they may
	// take, arming and disarming included. 0 is DefaultPerHour and DefaultShare, besides what the
	// schedule needs.
	PerHour int
	Share   float64

	// Patience bounds one call of Engines, DrainEvery is the time between two calls of Drain; 0 is
	// their default.
	Patience, DrainEvery time.Duration

	// Opened and Closed are told of each window, one call at a time, by the goroutine that runs it:
	// they must not wait. Opened comes before anything is paused, Closed after all is restored.
	// Attempts in which no engine ran have both, too. Refused requests have neither.
	Opened, Closed func(Window)
	// Logger is told of broken engines; nil drops it.
	Logger *slog.Logger
}

// Planned says whether windows come without being asked for, by the schedule or a rule.
func (c *Config) Planned() bool { return c.After > 0 || c.Every > 0 || len(c.When) > 0 }

// Setting is a setting of Config that users make: by a flag of gpuflight trace, or a variable of
// the process.
type Setting struct{ Flag, Variable, Usage string }

// WhenVariable has the rules, separated by semicolons: --deep-when may be given again and again.
const WhenVariable = "GPUFLIGHT_DEEP_WHEN"

// Settings are all settings, for the flags of gpuflight trace. A flag sets its variable.
var Settings = []Setting{
	{"deep-after", "GPUFLIGHT_DEEP_AFTER", "open a deep window this `duration` after the start of a process (30s)"},
	{"deep-every", "GPUFLIGHT_DEEP_EVERY", "open deep windows every so often, a `duration` (5m)"},
	{"deep-when", WhenVariable, "open a deep window when a `rule` is met, such as 'kernel.rate < 100/s for 2s' or 'scope(train_step).p95 > 1.5x baseline'; can be given several times"},
	{"deep-for", "GPUFLIGHT_DEEP_FOR", "`duration` of a deep window (default 2s)"},
	{"deep-engine", "GPUFLIGHT_DEEP_ENGINE", "`engine` of deep windows: pc (samples of program counters with stall reasons), sass (instruction counts), or both, half the time each (default pc)"},
	{"deep-max", "GPUFLIGHT_DEEP_MAX", "most deep `windows` of a process, 0 for any number (default 0)"},
	{"deep-blackout", "GPUFLIGHT_DEEP_BLACKOUT", "no deep window for this `duration` after the start (default 2s, or --deep-after if that is less)"},
	{"deep-cooldown", "GPUFLIGHT_DEEP_COOLDOWN", "least `duration` between two deep windows (default 10s, or what --deep-every leaves)"},
	{"deep-per-hour", "GPUFLIGHT_DEEP_PER_HOUR", "most deep `windows` in an hour (default 60, and those of --deep-every)"},
	{"deep-share", "GPUFLIGHT_DEEP_SHARE", "most of an hour that deep windows may take, a `share` (default 5%, and that of --deep-every)"},
	{"deep-signal", "GPUFLIGHT_DEEP_SIGNAL", "open a deep window at a `signal` to the process: USR1 or USR2"},
}

// ConfigFromEnv reads the configuration by getenv, which is os.Getenv or like it: "" is not set.
// GPUFLIGHT_DEEP enables windows, as does any setting that opens one (AFTER, EVERY, WHEN, SIGNAL),
// unless GPUFLIGHT_DEEP says no. Its error names each variable with a bad value and what would be
// good; the Config beside it has defaults there.
func ConfigFromEnv(getenv func(string) string) (Config, error) {
	r := envReader{getenv: getenv}
	c := Config{
		After:    r.duration("GPUFLIGHT_DEEP_AFTER", time.Millisecond),
		Every:    r.duration("GPUFLIGHT_DEEP_EVERY", MinFor),
		For:      r.duration("GPUFLIGHT_DEEP_FOR", MinFor),
		Blackout: r.orNone("GPUFLIGHT_DEEP_BLACKOUT"),
		CoolDown: r.orNone("GPUFLIGHT_DEEP_COOLDOWN"),
		Max:      r.count("GPUFLIGHT_DEEP_MAX", 0),
		PerHour:  r.count("GPUFLIGHT_DEEP_PER_HOUR", 1),
		Share:    r.share("GPUFLIGHT_DEEP_SHARE"),
		Signal:   r.signal("GPUFLIGHT_DEEP_SIGNAL"),
		When:     r.rules(WhenVariable),
	}
	var err error
	if c.Engine, err = ParseEngine(strings.ToLower(getenv("GPUFLIGHT_DEEP_ENGINE"))); err != nil {
		r.errs = append(r.errs, settings.Wrong("GPUFLIGHT_DEEP_ENGINE", "%v", err))
		c.Engine = PC
	}
	asked := c.After > 0 || c.Every > 0 || len(c.When) > 0 || c.Signal != ""
	switch v := getenv("GPUFLIGHT_DEEP"); strings.ToLower(v) {
	case "":
		c.Enabled = asked
	case "1", "true", "yes", "on":
		c.Enabled = true
	case "0", "false", "no", "off":
	default:
		r.bad("GPUFLIGHT_DEEP", v, "true or false")
	}
	if len(r.errs) == 0 {
		if _, err := c.complete(); err != nil {
			r.errs = append(r.errs, err)
			// What contradicts each other cannot be kept by half.
			c.After, c.Every, c.Blackout, c.CoolDown, c.PerHour, c.Share = 0, 0, 0, 0, 0, 0
			c.For = 0
		}
	}
	return c, errors.Join(r.errs...)
}

// complete fills in the defaults and checks the whole.
func (c Config) complete() (Config, error) {
	if c.Engine == "" {
		c.Engine = PC
	}
	if _, err := ParseEngine(string(c.Engine)); err != nil {
		return c, err
	}
	c.For = orDefault(c.For, DefaultFor)
	c.Patience = orDefault(c.Patience, DefaultPatience)
	c.DrainEvery = orDefault(c.DrainEvery, DefaultDrainEvery)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.For < MinFor || c.For > MaxFor:
		return c, fmt.Errorf("a deep window of %v; it must be %v to %v long", c.For, MinFor, MaxFor)
	case c.After < 0 || c.Every < 0 || c.Max < 0 || c.PerHour < 0 || c.Patience < 0 || c.DrainEvery < 0 || !(c.Share >= 0 && c.Share <= 1):
		return c, errors.New("a limit of deep windows is below 0, or a share above 1")
	case c.PerHour > maxPerHour:
		return c, fmt.Errorf("%d deep windows an hour; %d are the most", c.PerHour, maxPerHour)
	case c.Signal != "" && c.Signal != "USR1" && c.Signal != "USR2":
		return c, fmt.Errorf("%q is no signal for deep windows; there are USR1 and USR2", c.Signal)
	case len(c.When) > rule.MaxRules:
		return c, fmt.Errorf("there are %d rules for deep windows; %d are the most", len(c.When), rule.MaxRules)
	}
	if c.Every > 0 && c.After == 0 {
		c.After = c.Every
	}
	switch {
	case c.Blackout == 0 && c.After > 0:
		c.Blackout = min(DefaultBlackout, c.After)
	case c.Blackout == 0:
		c.Blackout = DefaultBlackout
	case c.After > 0 && c.After < c.Blackout:
		return c, fmt.Errorf("the first deep window is due after %v, in the blackout of %v; make one of them fit", c.After, c.Blackout)
	}
	return c.fitSchedule()
}

// fitSchedule makes the limits that were not set such that the schedule keeps them, and refuses
// those that were set and cannot be kept.
func (c Config) fitSchedule() (Config, error) {
	windows, share := 0, 0.
	if c.Every > 0 {
		if c.Every <= c.For {
			return c, fmt.Errorf("deep windows of %v every %v leave nothing between; make them shorter or rarer", c.For, c.Every)
		}
		windows = int(time.Hour/c.Every) + 1
		share = min(1, float64(windows)*c.For.Hours())
	}
	switch {
	case c.CoolDown == 0 && c.Every > 0:
		// Half of what is between: arming and disarming take their time, too.
		c.CoolDown = min(DefaultCoolDown, (c.Every-c.For)/2)
	case c.CoolDown == 0:
		c.CoolDown = DefaultCoolDown
	case c.Every > 0 && c.CoolDown > c.Every-c.For:
		return c, fmt.Errorf("deep windows of %v every %v leave less than the cool-down of %v between; make one of them fit", c.For, c.Every, c.CoolDown)
	}
	switch {
	case c.PerHour == 0:
		c.PerHour = min(maxPerHour, DefaultPerHour+windows)
	case windows > c.PerHour:
		return c, fmt.Errorf("a deep window every %v makes %d an hour, above the maximum of %d; make one of them fit", c.Every, windows, c.PerHour)
	}
	switch {
	case c.Share == 0:
		// Twice, since arming and disarming count.
		c.Share = min(1, DefaultShare+2*share)
	case share > c.Share:
		return c, fmt.Errorf("deep windows of %v every %v take %.3g%% of the time, above the share of %.3g%%; make one of them fit", c.For, c.Every, share*100, c.Share*100)
	case c.For.Hours() > c.Share:
		return c, fmt.Errorf("one deep window of %v is more than %.3g%% of an hour; make one of them fit", c.For, c.Share*100)
	}
	return c, nil
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// ParseRules reads rules that are separated by semicolons or lines. Semicolons in double quotes are
// text.
func ParseRules(text string) ([]rule.Rule, error) {
	var rules []rule.Rule
	var errs []error
	quoted := false
	for _, part := range strings.FieldsFunc(text, func(c rune) bool {
		if c == '"' {
			quoted = !quoted
		}
		return c == '\n' || c == ';' && !quoted
	}) {
		if strings.TrimSpace(part) == "" {
			continue
		}
		r, err := rule.Parse(part)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		rules = append(rules, r)
	}
	if len(rules) > rule.MaxRules {
		errs = append(errs, fmt.Errorf("there are %d rules; %d are the most", len(rules), rule.MaxRules))
		rules = rules[:rule.MaxRules]
	}
	return rules, errors.Join(errs...)
}

// envReader reads values and collects what is wrong with them.
type envReader struct {
	getenv func(string) string
	errs   []error
}

func (r *envReader) bad(name, value, want string) {
	r.errs = append(r.errs, settings.Bad(name, value, want))
}

func (r *envReader) duration(name string, least time.Duration) time.Duration {
	v := r.getenv(name)
	if v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < least {
		r.bad(name, v, fmt.Sprintf("a duration of at least %v, such as 500ms, 2s or 5m", least))
		return 0
	}
	return d
}

// orNone reads a duration of which 0 means none, which Config spells as below 0.
func (r *envReader) orNone(name string) time.Duration {
	d := r.duration(name, 0)
	if d == 0 && r.getenv(name) != "" {
		return -1
	}
	return d
}

func (r *envReader) count(name string, least int) int {
	v := r.getenv(name)
	if v == "" {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > 1<<31-1 {
		r.bad(name, v, fmt.Sprintf("a whole number from %d on", least))
		return 0
	}
	return n
}

func (r *envReader) share(name string) float64 {
	v := r.getenv(name)
	if v == "" {
		return 0
	}
	digits, percent := strings.CutSuffix(v, "%")
	share, err := strconv.ParseFloat(digits, 64)
	if percent {
		share /= 100
	}
	if err != nil || !(share > 0 && share <= 1) {
		r.bad(name, v, "a share above 0 and at most 1, such as 5% or 0.05")
		return 0
	}
	return share
}

func (r *envReader) signal(name string) string {
	v := strings.TrimPrefix(strings.ToUpper(r.getenv(name)), "SIG")
	switch v {
	case "", "USR1", "USR2":
		return v
	}
	r.bad(name, r.getenv(name), "USR1 or USR2")
	return ""
}

func (r *envReader) rules(name string) []rule.Rule {
	rules, err := ParseRules(r.getenv(name))
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("%s: %w", name, err))
	}
	return rules
}
