// SPDX-License-Identifier: Apache-2.0

package compare

import "math"

// studentTail returns the probability that the absolute value of a variable with Student's distribution is
// at least t, for nu degrees of freedom. It is the regularised incomplete beta function
// I(nu/(nu+t²); nu/2, 1/2).
//
// Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.1 and 26.5.27.
func studentTail(t, nu float64) float64 {
	return incompleteBeta(nu/(nu+t*t), nu/2, 0.5)
}

// studentQuantile returns the t with studentTail(t, nu) = p, for 0 < p < 1.
func studentQuantile(p, nu float64) float64 {
	low, high := 0.0, 1.0
	for studentTail(high, nu) > p {
		high *= 2
	}
	for range 60 {
		if middle := (low + high) / 2; studentTail(middle, nu) > p {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}

// incompleteBeta returns I(x; a, b) by its continued fraction (Abramowitz and Stegun, 26.5.8), evaluated
// as Lentz did ("Generating Bessel functions in Mie scattering calculations", Applied Optics 15, 1976).
func incompleteBeta(x, a, b float64) float64 {
	switch {
	case x <= 0:
		return 0
	case x >= 1:
		return 1
	case x > (a+1)/(a+b+2): // where the fraction converges slowly
		return 1 - incompleteBeta(1-x, b, a)
	}
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	lab, _ := math.Lgamma(a + b)
	front := math.Exp(lab-la-lb+a*math.Log(x)+b*math.Log1p(-x)) / a
	const tiny = 1e-300
	nonzero := func(v float64) float64 {
		if math.Abs(v) < tiny {
			return tiny
		}
		return v
	}
	f, c, d := 1.0, 1.0, 0.0
	for i := range 300 {
		m := float64(i / 2)
		var term float64
		switch {
		case i == 0:
			term = 1
		case i%2 == 0:
			term = m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		default:
			term = -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		}
		d = 1 / nonzero(1+term*d)
		c = nonzero(1 + term/c)
		f *= c * d
		if math.Abs(1-c*d) < 1e-14 {
			break
		}
	}
	return front * (f - 1)
}
