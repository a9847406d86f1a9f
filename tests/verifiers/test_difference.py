"""Math answers that are not the same, by kind. Those that are: test_equality.py."""

import pytest
from pairs import pairs

from jaxrl_vr.verifiers.equality import equal

DIFFERENT = {
    "numbers": r"""
        1/6 ||| 0.\overline{16}
        1/3 ||| 0.33
        1/3 ||| 0.3333
    """,
    "ratios and times": r"""
        12:30 ||| 12.5
        12:30 ||| 2/5
        12:00 ||| 1:00
        3:4 ||| 4:3
        2:3:4 ||| 4:3:2
        2:3 ||| 2:3:4
    """,
    "inequalities and sets": r"""
        x<3 ||| x \le 3
        x\ne 0 ||| x \ne 1
        x>3 ||| x<3
        x+y<3 ||| x+y>3
        x+y<3 ||| -x-y<-4
        (1,2) ||| [1,2]
        (1,2) ||| \{1,2\}
        (1,2)\cup(3,4) ||| (1,4)
        [0,1)\cup(1,2] ||| [0,2]
        |x|<3 ||| x<3
    """,
    "units": r"""
        5 apples ||| 5 oranges
        12 boys ||| 12 girls
        5 million ||| 5
        5 dozen ||| 5
        2 thirds ||| 2
    """,
    "bases, sums, matrices": r"""
        1010_2 ||| 1010_3
        \sum_{k=1}^{n} a_k ||| n a_k
        \sum_{k=1}^{n} k ||| \sum_{k=1}^{n} k^2
        \sum_{k=0}^{n-1} F_k ||| \sum_{k=0}^{n-2} F_k
        \begin{pmatrix}1\\2\end{pmatrix} ||| \begin{pmatrix}2\\1\end{pmatrix}
        \begin{vmatrix}1&2\\3&4\end{vmatrix} ||| \begin{pmatrix}1&2\\3&4\end{pmatrix}
        \begin{pmatrix}1&2\\3&4\end{pmatrix} ||| 10
    """,
    "text": r"""
        A or B ||| A
        (A) and (B) ||| A
        (A) (B) ||| A
        A. 1 B. 2 ||| A
        C ||| c
        god ||| dog
        tar ||| rat
        ABC ||| CBA
    """,
    "equations": r"""
        i ||| -i
        x^2=4 ||| 4
        x+y=3 ||| 3
        2x=6 ||| 6
        x y = 3 ||| 3
    """,
    "lists": r"""
        \pm 3 ||| 3
        \{1,1,2\} ||| \{1,2,3\}
        1,1 ||| 2
        yes ||| no
        not 5 ||| 5
        5 ||| 5 or 6
        5 ||| 5, 6
        5 ||| \{5,6\}
    """,
    "percent": r"""
        50\% ||| 5
        50\% ||| 500
        50\% ||| 0.05
        20\% ||| 2
        0.5 ||| 50
    """,
    "the rest": r"""
        \log 100 ||| \ln 100
        42 ||| 41 \approx 42
        42=42=43 ||| 42
        7=42 ||| 42
        \infty ||| -\infty
        \emptyset ||| 0
        \emptyset ||| \{0\}
        \mathbb{R} ||| \mathbb{Z}
        \mathbb{R} ||| x
        e ||| 2.718
        \pi ||| 3.1416
        123456.7 ||| 123456.8
        1e3 ||| 1e4
        3+4i ||| 3-4i
        3+4i ||| 5
        90^\circ ||| 80^\circ
        x^2 ||| 2x
        x^2 ||| x
        \frac{1}{x} ||| x
        5! ||| 5
        \lfloor 3.7 \rfloor ||| 4
        C(5,2) ||| (5,2)
        f(5) ||| 5
        p \mid q ||| q \mid p
        1,234 ||| (1,234)
        1, 234 ||| 1234
        12,34 ||| 1234
    """,
    "reports": r"""
        n=2,3,4 ||| n=1,2,3
        \pm 2021 ||| 2021
        1331 and 1728 ||| 1728
        4 ||| 4\sqrt{2}
        3*x-1*y+13=0 ||| 3x+4y+14=0
        f(x)=0 ||| 0=1
        f(x)=0 ||| f(x)=1
        2 1/4 ||| 1
        1/2004! ||| 1/2006!
        12:00 ||| 0
        a=0 ||| b=0
        a^2+b=0 ||| 0
        x=5 ||| x=-5
        y=2x+1 ||| y=2x-1
    """,
    "symbols": r"""
        2x ||| 2y
        2^x ||| x^2
        \ln 2 ||| \log_2 e
        \sin x ||| \cos x
        \frac{1}{2} ||| \frac{2}{1}
    """,
    "sets of numbers": r"""
        (1,2,3) ||| (1,2)
        (1,2) ||| (1,3)
        \{1,2\} ||| \{1,3\}
        x\ge1 ||| x\le1
        [1,\infty) ||| (1,\infty)
        x<1 \text{ or } x>3 ||| (1,3)
    """,
    "other units": r"""
        5 cm ||| 5 m
        5 km ||| 5 miles
        5 cm ||| 5 cm^2
        5 minutes ||| 5 hours
        \$5 ||| 5 euros
        3 apples ||| 4 apples
    """,
    "other words": r"""
        A ||| B
        AB ||| BA
        A,B ||| A
        Monday ||| Tuesday
        infinity ||| -infinity
    """,
    "close numbers": r"""
        0.1 ||| 0.10001
        9007199254740993 ||| 9007199254740992.0
        10^{100} ||| 10^{100}+1
        2^{1000} ||| 2^{1000}+1
        3^{5000} ||| 3^{5001}
        100! ||| 99!
        1.0000001 ||| 1
        99.99\% ||| 100\%
        1e-10 ||| 0
        0.999999999999 ||| 1
        3.14159265 ||| \pi+10^{-5}
        \sqrt2 ||| 1.41421357
        1.5 ||| 1.50001
    """,
    "other symbols": r"""
        i ||| 1
        3+4i ||| 4+3i
        90^\circ ||| 9^\circ
        1010_2 ||| 1011_2
        6.02e23 ||| 6.02e22
        1,234 ||| 1.234
        1,234 ||| 1234.5
        x_1 ||| x_{12}
        x ||| X
        \alpha ||| a
        p \lor q ||| p \land q
        \text{if } x > 0 ||| x > 0
    """,
    "hedges": r"""
        yes ||| yes or no
        both A and B ||| A
        5 or more ||| 5
        at least 5 ||| 5
        more than 5 ||| 5
        less than 5 ||| 5
        about 5 ||| 6
        5+ ||| 5
        5- ||| 5
        5? ||| 6
        5,5 ||| 5,6
        2,3 ||| 2.3
        2/3 ||| 2, 3
        23 ||| 2 3
        (5) ||| (6)
        x=5,6 ||| x=5
    """,
    "nothing": r"""
        \frac{0}{0} ||| 0
        1/0 ||| \infty
        \infty-\infty ||| 0
        nan ||| 0
    """,
}


@pytest.mark.parametrize(("a", "b"), pairs(DIFFERENT))
def test_different(a, b):
    assert not equal(a, b) and not equal(b, a)
