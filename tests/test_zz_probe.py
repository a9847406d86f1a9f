import time
from inprocess import *
def test_probe(tmp_path, capsys):
    t=time.time()
    p=config(tmp_path, sft("a"), evaluation("before"), rl("b"), evaluation("after"))
    out=call(capsys,"train",p)
    print(out, time.time()-t)
    for f in sorted((tmp_path/"run").rglob("*")): print(f)
    print((tmp_path/"run/summary.json").read_text())
    t=time.time()
    print(call(capsys,"eval",p,"--init","b",code=2))
    print(call(capsys,"sample",p,"--init","b","--prompts","/dev/null",code=2), time.time()-t)
