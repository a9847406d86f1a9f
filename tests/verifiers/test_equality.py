"""Math answers that are the same, by kind. Those that are not: test_difference.py."""

import pytest
from pairs import pairs

from jaxrl_vr.verifiers.equality import equal, stage
from jaxrl_vr.verifiers.rules import Rules

SAME = {
    "numbers": r"""
        \frac{3}{-4} ||| -\frac34
        0.\overline{3} ||| 1/3
        0.1\overline{6} ||| \frac16
        0.\bar{3} ||| \frac13
        0.\dot{3} ||| \frac13
        0.\dot{1}4285\dot{7} ||| \frac17
        0.333... ||| \frac13
        0.3333\ldots ||| 1/3
        0.(3) ||| 1/3
        0.3̅ ||| 1/3
        0.142857142857... ||| 1/7
        0.\overline{142857} ||| 1/7
        2.\overline{3} ||| 7/3
        .5 ||| 0.5
        1,000.0 ||| 1000
        1 000 000 ||| 1000000
        1 000.99 ||| 1000.99
        -1\frac{1}{2} ||| -1.5
        -2 1/4 ||| -9/4
        1½ ||| 3/2
    """,
    "percent": r"""
        50 percent ||| 0.5
        50 per cent ||| 50\%
        50％ ||| 0.5
        7.5\% ||| 0.075
        33\frac13\% ||| 1/3
        33.\overline{3}\% ||| 1/3
        50\% ||| 50
    """,
    "units": r"""
        18 eggs ||| 18
        18 \text{ marbles} ||| 18
        30 km/h ||| 30
        30\text{ km/h} ||| 30 \text{ kilometers per hour}
        \$1,234.50 ||| 1234.5
        12 square units ||| 12
        100\text{ cm}^3 ||| 100
        5\,\text{m}^2 ||| 5 \text{ square meters}
        £18 ||| 18
        ¥500 ||| 500
        3 hours ||| 3 hrs
    """,
    "sets": r"""
        \{1,2,2,3\} ||| \{3,2,1\}
        \emptyset ||| \{\}
        \varnothing ||| ∅
        \emptyset ||| \varnothing
        (-\infty,0)\cup(0,\infty) ||| x \neq 0
        \mathbb{R} \setminus \{0\} ||| (-\infty,0) \cup (0,\infty)
        \mathbb{R} ||| (-\infty,\infty)
        x \in \mathbb{R} ||| \mathbb{R}
        \{x \mid x > 3\} ||| (3,\infty)
        \{x : x \ge 3\} ||| x \ge 3
        \{x \in \mathbb{R} \mid x \neq 2\} ||| x \ne 2
    """,
    "inequalities": r"""
        x<-1 \text{ or } x>1 ||| (-\infty,-1)\cup(1,\infty)
        x<-1, x>1 ||| (-\infty,-1)\cup(1,\infty)
        x > 1 \text{ and } x < 3 ||| (1,3)
        |x|>1 ||| x<-1 \text{ or } x>1
        |x-1|\le 2 ||| [-1,3]
        |x|<3 ||| -3<x<3
        2x > 6 ||| x>3
        -x < 2 ||| x > -2
        x+y<3 ||| 3 > x+y
        x + y \le 3 ||| 2x+2y \le 6
        a<x<b ||| b>x>a
        (1,3] \cup [3,5) ||| (1,5)
        [1,2] \cup [3,4] ||| [3,4] \cup [1,2]
        (1;2) ||| (1,2)
        3<x ||| x>3
    """,
    "equations": r"""
        5=x ||| x=5
        x = 3 + 2 = 5 ||| 5
        6 \cdot 7 = 42 ||| 42
        x=y ||| y=x
        y = 2x+1 ||| 2x - y + 1 = 0
        f(2)=5 ||| 5
        \angle ABC = 30^\circ ||| 30
        AB = 5 ||| 5
        P(A) = \frac12 ||| 0.5
        \text{Area} = 5 ||| 5
        AB:CD=3:4 ||| 3:4
        S_1:S_2 = 1:4 ||| 1:4
        \frac{AB}{CD} = \frac{2}{3} ||| \frac23
    """,
    "ratios and times": r"""
        3:4 ||| 6:8
        3:4 ||| 3 to 4
        3:4 ||| \frac34
        3:4 ||| 0.75
        2:3:4 ||| 4:6:8
        09:05 ||| 9:05
        12:30 ||| 12:30
        12:30\text{ PM} ||| 12:30 pm
    """,
    "matrices": r"""
        \begin{vmatrix}1&2\\3&4\end{vmatrix} ||| -2
        \left[\begin{array}{cc}1&2\\3&4\end{array}\right] ||| \begin{pmatrix}1&2\\3&4\end{pmatrix}
        \left(\begin{array}{c}1\\2\end{array}\right) ||| \begin{bmatrix}1\\2\end{bmatrix}
        \begin{matrix}1\end{matrix}+\begin{matrix}3\end{matrix} ||| \begin{matrix}4\end{matrix}
        \frac12\begin{pmatrix}2\\4\end{pmatrix} ||| \begin{pmatrix}1\\2\end{pmatrix}
        -\begin{pmatrix}2\\4\end{pmatrix} ||| \begin{pmatrix}-2\\-4\end{pmatrix}
        A=\begin{pmatrix}2\\4\end{pmatrix} ||| \begin{pmatrix}2\\4\end{pmatrix}
        \begin{pmatrix}x+1\\2\end{pmatrix} ||| \begin{pmatrix}1+x\\2\end{pmatrix}
        \langle 1,2\rangle ||| (1,2)
    """,
    "plus-minus": r"""
        \pm\frac{1}{2} ||| \frac12, -\frac12
        x=\pm 3 ||| 3,-3
        x=\pm 3 ||| \pm 3
        x = 3 \text{ or } x = -3 ||| \pm 3
    """,
    "roots": r"""
        \sqrt[3]{8} ||| 2
        \sqrt[3]{-8} ||| -2
        ∛8 ||| 2
        √(12) ||| 2√3
        sqrt(17) ||| \sqrt{17}
        2*sqrt(3) ||| \sqrt{12}
        3^{1/2} ||| \sqrt3
        \frac{1}{\sqrt n} ||| \sqrt{\frac1n}
    """,
    "functions": r"""
        \sin(30^\circ) ||| 1/2
        \sec x ||| \frac{1}{\cos x}
        \operatorname{arctan} 2 ||| \tan^{-1}(2)
        \cos 2x ||| 1-2\sin^2 x
    """,
    "binomials and powers": r"""
        \binom{5}{2} ||| 10
        C(5,2) ||| 10
        {5 \choose 2} ||| 10
        {a \over b} ||| \frac{a}{b}
        {1 \over 2} ||| 0.5
        2^{10} ||| 1024
        2^10 ||| 1024
        2**10 ||| 1024
        \log_{10} 100 ||| 2
        \lg 100 ||| 2
        \ln e ||| 1
        e^{\ln 5} ||| 5
    """,
    "complex numbers": r"""
        1/i ||| -i
        (1+i)^2 ||| 2i
        |3+4i| ||| 5
        e^{i\pi/2} ||| i
        \sqrt{-4} ||| 2i
        \frac{1+i}{1-i} ||| i
        3+2i ||| 2i+3
        (3.0 + 2.0i) ||| 3+2i
    """,
    "degrees and bases": r"""
        90^\circ ||| 90 \text{ degrees}
        90° ||| 90^{\circ}
        1010_2 ||| 1010_{2}
        1010_2 ||| (1010)_2
        1010_{\text{two}} ||| 1010_2
        1010 \text{ base } 2 ||| 1010_2
        42_{10} ||| 42
    """,
    "scientific": r"""
        6.02e23 ||| 6.02 \times 10^{23}
        6.02*10^23 ||| 6.02 × 10²³
        6.02 x 10^23 ||| 6.02E+23
        1.5e3 ||| 1500
    """,
    "sums and rounding": r"""
        \sum_{k=1}^{n} k ||| \frac{n(n+1)}{2}
        \sum_{k=1}^{100} k ||| 5050
        \prod_{k=1}^{5} k ||| 120
        \lfloor 3.7 \rfloor ||| 3
        \lceil 3.2 \rceil ||| 4
    """,
    "text": r"""
        \text{(C)} ||| C
        (C) 42 ||| C
        C. 42 ||| C
        \textbf{(C)}\ 42 ||| (C)
        yes ||| Yes
        \text{No} ||| no
        \text{an ellipse} ||| ellipse
        "Paris" ||| paris
    """,
    "unicode": r"""
        √2 ||| \sqrt{2}
        2π ||| 2\pi
        x₁ ||| x_1
        ١٢ ||| 12
        𝟏𝟐 ||| 12
        ① ||| 1
        ⅓ ||| 1/3
        3×4 ||| 12
        6÷2 ||| 3
        5−3 ||| 2
        ≤ ||| \le
        x≥3 ||| [3,∞)
    """,
    "layout": r"""
        5\\ ||| 5
        5\qquad ||| 5
        \mathbf{5} ||| 5
        \boldsymbol{5} ||| 5
        {\rm cm} ||| \text{cm}
        5 {\rm cm} ||| 5
        \underline{5} ||| 5
        \hspace{1cm}5 ||| 5
        \bigl(1,2\bigr) ||| (1,2)
        \left.5\right. ||| 5
        \textcolor{red}{7} ||| 7
        \color{red}7 ||| 7
        \frac 1 3 ||| \frac13
        \frac{1}3 ||| 1/3
        \frac1{3} ||| 1/3
        x' ||| x^{\prime}
    """,
    "decimals of irrational numbers": r"""
        2.718281828459045 ||| e
        1.4142135624 ||| \sqrt2
        3.14159265358979 ||| \pi
        x=1/3\approx0.333 ||| 1/3
    """,
    "small spellings": r"""
        10^{-3} ||| 0.001
        -0 ||| 0
        +5 ||| 5
        5. ||| 5
        042 ||| 42
        `42` ||| 42
        (5) ||| 5
        \{5\} ||| 5
        (3x+2)(x-1) ||| 3x^2-x-2
    """,
    "lists and tuples": r"""
        a=1, b=2 ||| b=2, a=1
        x=2,\ y=3 ||| (2,3)
        (x,y)=(1,2) ||| (1,2)
        (1,2),(3,4) ||| (3,4),(1,2)
        \{(1,2),(3,4)\} ||| \{(3,4),(1,2)\}
        1, 2, and 3 ||| 3,2,1
        19, 46, \text{ and } 82 ||| 19, 46, and 82
    """,
    "algebra": r"""
        \frac{\pi}{2} ||| π/2
        \frac{3}{4}\pi ||| \frac{3\pi}{4}
        x^{2}y ||| yx^2
        5^{\circ} ||| 5°
        2\cdot3^{5} ||| 486
        \sqrt{\frac{1}{2}} ||| \frac{\sqrt{2}}{2}
        \frac{1}{2}\sqrt{2} ||| \frac{1}{\sqrt2}
        n! ||| n!
        k=7 ||| 7
        x=\frac{-1\pm\sqrt5}{2} ||| \frac{-1+\sqrt5}{2}, \frac{-1-\sqrt5}{2}
        (3, \pi/2) ||| \left(3,\frac{\pi}{2}\right)
        7.41\% ||| 7.41%
        \text{13} ||| 13
        \overline{AB} ||| \overline{AB}
        2\overline{AB} ||| \overline{AB}\cdot 2
        10\% ||| 1/10
        1{,}234 ||| 1234
        12,345,678 ||| 12345678
        \text{June 5} ||| june 5
        \infty ||| ∞
        +\infty ||| \infty
        [2, +\infty) ||| x \ge 2
        (-\infty, -2] ||| x \le -2
        -2 \ge x ||| (-\infty,-2]
        5x ||| x*5
        1/x ||| x^{-1}
        x/y/z ||| \frac{x}{yz}
    """,
    "equations and lists": r"""
        n=2,3,4 ||| n=2,3,4
        n=2,3,4 ||| 2,3,4
        \pm 2021 ||| 2021,-2021
        x_{1}=1,x_{2}=-1 ||| \pm1
        x=1, x=2 ||| 1,2
        x \in \{1, 2\} ||| \{1,2\}
        x_1 = 3 ||| 3
        -34x-45y+20z=100 ||| 34x+45y-20z+100=0
    """,
    "trigonometry": r"""
        \frac{\sin x}{\cos x} ||| \tan x
        \sec^2 x ||| 1+\tan^2 x
        \frac{1-\cos 2x}{2} ||| \sin^2 x
        \cot x ||| \frac{1}{\tan x}
    """,
    "algebra with symbols": r"""
        \frac{n(n-1)}{2} ||| \binom{n}{2}
        n! ||| n\cdot(n-1)!
        \ln(ab) ||| \ln a + \ln b
        \log_2 3 ||| \frac{\ln 3}{\ln 2}
        \ln\frac{1}{2} ||| -\ln 2
        \sqrt{x+1} ||| (x+1)^{1/2}
        \frac{x^2-1}{x-1} ||| x+1
        e^{x+y} ||| e^x e^y
        2^{n+1} ||| 2\cdot 2^n
    """,
    "roots and angles": r"""
        \frac{1}{1+\sqrt2} ||| \sqrt2-1
        \sqrt{3+2\sqrt2} ||| 1+\sqrt2
        \frac{\sqrt{6}+\sqrt{2}}{4} ||| \cos 15^\circ
        \arcsin\frac12 ||| \frac{\pi}{6}
        \arctan 1 ||| \pi/4
        2\pi/3 ||| \frac{2}{3}\pi
    """,
    "units and money": r"""
        120\pi \text{ cm}^2 ||| 120\pi
        \$5.50 ||| 5.5
        5.50 dollars ||| \$5.50
        45\text{ minutes} ||| 45
        25\% ||| 0.25
        25\% ||| 25
        1\frac{1}{2} \text{ cups} ||| 1.5
        3 \text{ feet } ||| 3 ft
    """,
    "choices and words": r"""
        x \text{ and } y ||| y, x
        \text{A, B} ||| B, A
        \text{A and C} ||| A, C
        A,C ||| C, A
        \{A,C\} ||| A and C
        (A),(C) ||| A,C
        \text{Monday} ||| monday
        \mathrm{True} ||| true
        \text{no solution} ||| No solution
        \text{None of the above} ||| none of the above
    """,
    "spellings of numbers": r"""
        6,\!000 ||| 6000
        \frac{1}{2}x^2 ||| x^2/2
        0.5x ||| \frac{x}{2}
        \frac{1}{2}(x+1) ||| \frac{x+1}{2}
    """,
    "curves and planes": r"""
        (x-1)^2+(y+2)^2=9 ||| x^2-2x+y^2+4y-4=0
        y=x ||| x-y=0
        y - 2 = 3(x-1) ||| y=3x-1
        x^2+y^2=1 ||| 1=x^2+y^2
        \begin{bmatrix}1 & 2\end{bmatrix} ||| \begin{pmatrix}1 & 2\end{pmatrix}
        \left\{\frac{1}{2}, 3\right\} ||| \{3, 0.5\}
    """,
    "intervals": r"""
        \left(-\infty, \frac{1}{2}\right) ||| x < 0.5
        \left[ \frac{1}{2}, \infty \right) ||| x \geq \frac12
        0 < x \leq 5 ||| (0, 5]
        5 \ge x > 0 ||| (0,5]
        x > 0 ||| 0 < x
        x\in(0,\infty) ||| x>0
        (-\infty, 1) \cup (1, \infty) ||| \mathbb{R} \setminus \{1\}
        x \ne 1 ||| \mathbb{R}\backslash\{1\}
        [-1,1]\cup\{2\} ||| \{2\}\cup[-1,1]
        \{x \mid -1 < x < 1\} ||| (-1,1)
        x \leq -1 \lor x \geq 1 ||| (-\infty,-1]\cup[1,\infty)
        1 < x, x < 2 ||| (1,2)
    """,
    "exact numbers": r"""
        (2k+1)\pi ||| \pi(1+2k)
        3.0 \times 10^8 ||| 3e8
        3\times10^8 ||| 300000000
        10^6 ||| 1,000,000
        1.23E4 ||| 12300
        -\frac{1}{2} ||| \frac{1}{-2}
        -(-5) ||| 5
        --5 ||| 5
        \frac{-1}{2} ||| -0.5
        \frac{6}{4} ||| \frac32
        1.50 ||| 3/2
        .75 ||| \frac{3}{4}
        \dfrac{\dfrac{1}{2}}{3} ||| 1/6
    """,
    "ratios, times, bases": r"""
        1:2 ||| 2:4
        1 : 2 ||| 1:2
        1\text{ to }2 ||| 1:2
        5:30 \text{ p.m.} ||| 5:30 PM
        3^\circ ||| 3
        45^{\circ} ||| 45\degree
        \angle A = 45^\circ ||| 45^\circ
        \theta = \frac{\pi}{4} ||| \frac{\pi}{4}
        11_{10} ||| 11
        A3_{16} ||| A3_{16}
        A3_{16} ||| \text{A3}_{16}
        110_2 ||| 110_{(2)}
    """,
    "more complex numbers": r"""
        i^2 ||| -1
        \frac{1}{2}+\frac{\sqrt3}{2}i ||| e^{i\pi/3}
        (2+i)(2-i) ||| 5
        -i ||| \frac{1}{i}
        \cos 60^\circ + i \sin 60^\circ ||| \frac{1+i\sqrt3}{2}
        2 + 3j ||| 2+3j
    """,
    "more unicode": r"""
        ∅ ||| \varnothing
        −½ ||| -0.5
        5⁄6 ||| 5/6
        x³ ||| x^3
        2⁻¹ ||| 1/2
        √x ||| \sqrt{x}
        α+β ||| \beta+\alpha
        １，０００ ||| 1000
        5，6 ||| 5,6
        １/２ ||| 0.5
        （1，2） ||| (1,2)
        −∞ ||| -\infty
        (−∞, 3] ||| x\le 3
        3 ± √2 ||| 3+\sqrt2, 3-\sqrt2
        ⌊3.7⌋ ||| 3
        {1} ||| 1
    """,
    "more layout": r"""
        \mathop{5} ||| 5
        5\;\;\; ||| 5
        \,5\, ||| 5
        \left(\frac{1}{2}\right) ||| \frac12
        \left( 1 , 2 \right) ||| (1,2)
        \bigg(1,2\bigg) ||| (1,2)
        5\mbox{ cm} ||| 5
        \textbf{5} ||| 5
        \text{5 apples} ||| 5
        5\text{.} ||| 5
        5 \, \text{units} ||| 5
        5\text{ (units)} ||| 5
        5 (cm) ||| 5
        \textrm{5} ||| 5
        \fbox{5} ||| 5
        \boxed{5} ||| 5
        5\; \mathrm{m/s} ||| 5
        9.8 \text{ m/s}^2 ||| 9.8
        3 \text{ kg} ||| 3\,kg
    """,
    "values": r"""
        \frac{a}{b} ||| a/b
        a^{-1} ||| 1/a
        \sqrt[4]{16} ||| 2
        \sqrt{\sqrt{16}} ||| 2
        \frac{10!}{8!} ||| 90
        \lceil \pi \rceil ||| 4
        \lfloor \sqrt{10} \rfloor ||| 3
        \sum_{i=1}^{5} i^2 ||| 55
        \frac{d}{dx} ||| \frac{d}{dx}
        \int_0^1 x\,dx ||| \int_0^1 x\,dx
        \lim_{x\to 0} x ||| \lim_{x\to 0} x
    """,
}


@pytest.mark.parametrize(("a", "b"), pairs(SAME))
def test_same(a, b):
    assert equal(a, b) and equal(b, a)


@pytest.mark.parametrize(
    ("rules", "a", "b", "is_same"),
    [
        (Rules(percent="value"), "50", r"50\%", False),
        (Rules(percent="value"), "0.5", r"50\%", True),
        (Rules(units="required"), "5", "5 cm", False),
        (Rules(units="required"), "5 cm", "5 centimeters", True),
        (Rules(units="ignored"), "5 meters", "5 feet", True),
        (Rules(order="strict"), "1, 2", "2, 1", False),
        (Rules(order="strict"), r"\{1, 2\}", r"\{2, 1\}", True),
        (Rules(order="free"), "(1, 2)", "(2, 1)", True),
        (Rules(order="free"), "[1, 2)", "[2, 1)", False),
        (Rules(decimals=4), r"\frac{1}{3}", "0.3333", True),
        (Rules(decimals=4), r"\frac{1}{3}", "0.3334", False),
        (Rules(decimals=4), r"\sqrt{2}", "1.414", True),
        (Rules(decimals=0), r"\frac{1}{3}", "0.33333333333333333", False),
        (Rules(tolerance=1e-2), "9.81", "9.8", True),
        (Rules(tolerance=1e-2), r"\pi", "3.14", True),
        (Rules(tolerance=1e-2), "100", "101", False),  # integers are exact
        (Rules(tolerance=1e-2), "2.0", "2.1", False),
    ],
)
def test_rules(rules, a, b, is_same):
    assert (equal(a, b, rules), equal(b, a, rules)) == (is_same, is_same)


@pytest.mark.parametrize(
    ("a", "b", "named"),
    [
        ("5", " 5 ", "text"),
        (r"\text{5}", "5", "text"),
        ("0.5", "1/2", "number"),
        ("Blue whale", "blue whale", "words"),
        ("(1,2)", "(1.0, 2)", "structure"),
        (r"\sqrt{8}", r"2\sqrt{2}", "expression"),
        ("5", "6", ""),
    ],
)
def test_the_stage_that_decides_is_named(a, b, named):
    assert stage(a, b) == stage(b, a) == named
